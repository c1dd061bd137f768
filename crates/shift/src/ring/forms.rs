//! What requests have besides addresses: few requests of a queue differ in it.

/// Forms that a queue's entries name by a byte.
const MAX_FORMS: usize = 250;

/// Opcode, flags and keys of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) opcode: u32,
    pub(super) flags: u32,
    pub(super) lkey: u32,
    /// 0 where the request names no memory of the peer.
    pub(super) rkey: u32,
}

/// The forms of a queue's requests.
#[derive(Default)]
pub(super) struct Forms {
    all: Vec<Form>,
    /// That of the newest request which has one.
    pub(super) current: u8,
}

impl Forms {
    /// The place of a form, which is added if `in_use` leaves room: it marks the places of those
    /// that entries name.
    pub(super) fn place_of(
        &mut self,
        form: Form,
        in_use: impl FnOnce(&mut [bool; 256]),
    ) -> Option<u8> {
        if let Some(place) = self.all.iter().position(|known| *known == form) {
            return u8::try_from(place).ok();
        }
        let place = if self.all.len() < MAX_FORMS {
            self.all.push(form);
            self.all.len() - 1
        } else {
            let mut used = [false; 256];
            used[usize::from(self.current)] = true;
            in_use(&mut used);
            let place = (0..MAX_FORMS).find(|place| !used[*place])?;
            self.all[place] = form;
            place
        };
        u8::try_from(place).ok()
    }

    pub(super) fn get(&self, place: u8) -> Option<Form> {
        self.all.get(usize::from(place)).copied()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<Form>()
    }
}
