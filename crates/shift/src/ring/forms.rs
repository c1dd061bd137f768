//! The properties of requests other than addresses. Few requests of a queue differ in them.

/// Maximum number of forms: entries refer to them by a byte.
const MAX_FORMS: usize = 250;

/// Opcode, flags and keys of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) opcode: u32,
    pub(super) flags: u32,
    pub(super) lkey: u32,
    /// 0 if the request refers to no memory of the peer.
    pub(super) rkey: u32,
}

/// The forms of a queue's requests.
#[derive(Default)]
pub(super) struct Forms {
    all: Vec<Form>,
    /// The form of the newest request that has one.
    pub(super) current: u8,
}

impl Forms {
    /// The index of a form. A new form is added if there is room; `in_use` marks the indices that
    /// entries refer to.
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
