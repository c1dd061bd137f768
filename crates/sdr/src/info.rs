//! What two ends of an SDR connection tell each other out of band.

use bowline_nic::Mtu;
use bowline_wire::Qpn;

use crate::config::SdrConfig;
use crate::error::SdrError;
use crate::imm::ImmLayout;

const VERSION: u8 = 1;

/// One end's QPs and keys, and the parameters that both must share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SdrInfo {
    pub(crate) config: SdrConfig,
    pub(crate) control: Qpn,
    /// By generation, then channel.
    pub(crate) qpns: Vec<Qpn>,
    /// The root key of each generation.
    pub(crate) roots: Vec<u32>,
}

impl SdrInfo {
    /// To be carried to the peer by whatever means.
    pub fn to_bytes(&self) -> Vec<u8> {
        let config = &self.config;
        let mut out = vec![VERSION];
        out.extend(config.layout.bits());
        out.extend([config.generations as u8, config.channels as u8]);
        out.extend(config.mtu.bytes().to_be_bytes());
        out.extend(config.chunk_bytes.to_be_bytes());
        out.extend(config.max_message.to_be_bytes());
        out.extend(self.control.get().to_be_bytes());
        for qpn in &self.qpns {
            out.extend(qpn.get().to_be_bytes());
        }
        for root in &self.roots {
            out.extend(root.to_be_bytes());
        }
        out
    }

    /// What a peer has sent.
    pub fn from_bytes(bytes: &[u8]) -> Result<SdrInfo, SdrError> {
        let mut rest = bytes;
        let [version, id, offset, user, generations, channels] = take(&mut rest)?;
        if version != VERSION {
            return Err(SdrError::Info("it is of another version of the protocol"));
        }
        let layout = ImmLayout::new(id, offset, user);
        let mtu = Mtu::from_bytes(u32::from_be_bytes(take(&mut rest)?));
        let chunk_bytes = u32::from_be_bytes(take(&mut rest)?);
        let max_message = u64::from_be_bytes(take(&mut rest)?);
        let config = SdrConfig {
            layout: layout.ok_or(SdrError::Info("no such layout of the immediate"))?,
            mtu: mtu.ok_or(SdrError::Info("no such MTU"))?,
            chunk_bytes,
            max_message,
            generations: generations.into(),
            channels: channels.into(),
            ..SdrConfig::default()
        };
        config.check().map_err(|_| SdrError::Info("its parameters do not go together"))?;
        let control = take_qpn(&mut rest)?;
        let count = config.generations * config.channels;
        let qpns = (0..count).map(|_| take_qpn(&mut rest)).collect::<Result<_, _>>()?;
        let roots = (0..config.generations)
            .map(|_| take(&mut rest).map(u32::from_be_bytes))
            .collect::<Result<_, _>>()?;
        if !rest.is_empty() {
            return Err(SdrError::Info("it is longer than it says"));
        }
        Ok(SdrInfo { config, control, qpns, roots })
    }

    /// Refuses a peer whose parameters are not ours.
    pub(crate) fn check_against(&self, ours: &SdrConfig) -> Result<(), SdrError> {
        let theirs = &self.config;
        let pairs = [
            ("MTU", ours.mtu.bytes().into(), theirs.mtu.bytes().into()),
            ("chunks of", ours.chunk_bytes.into(), theirs.chunk_bytes.into()),
            ("messages of at most", ours.max_message, theirs.max_message),
            ("generations", ours.generations.into(), theirs.generations.into()),
            ("channels", ours.channels.into(), theirs.channels.into()),
        ];
        for (what, ours, theirs) in pairs {
            if ours != theirs {
                let (ours, theirs) = (ours.to_string(), theirs.to_string());
                return Err(SdrError::Mismatch { what, ours, theirs });
            }
        }
        if ours.layout != theirs.layout {
            let [ours, theirs] = [ours, theirs].map(|c| format!("{:?}", c.layout.bits()));
            return Err(SdrError::Mismatch { what: "immediate bits", ours, theirs });
        }
        Ok(())
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], SdrError> {
    let (head, tail) = rest.split_first_chunk().ok_or(SdrError::Info("it ends early"))?;
    *rest = tail;
    Ok(*head)
}

fn take_qpn(rest: &mut &[u8]) -> Result<Qpn, SdrError> {
    let number = u32::from_be_bytes(take(rest)?);
    if number >> 24 != 0 {
        return Err(SdrError::Info("a QP number has more than 24 bits"));
    }
    Ok(Qpn::new(number))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn info() -> SdrInfo {
        let config = SdrConfig { channels: 2, ..SdrConfig::default() };
        SdrInfo {
            config,
            control: Qpn::new(7),
            qpns: (10..18).map(Qpn::new).collect(),
            roots: vec![1, 2, 3, 4],
        }
    }

    #[test]
    fn it_survives_the_journey() {
        assert_eq!(SdrInfo::from_bytes(&info().to_bytes()).unwrap(), info());
    }

    proptest! {
        #[test]
        fn rubbish_is_refused_without_a_panic(
            mut bytes in Just(info().to_bytes()),
            at in 0usize..60, value: u8, cut in 0usize..80,
        ) {
            bytes.truncate(cut);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            let _ = SdrInfo::from_bytes(&bytes);
        }
    }

    #[test]
    fn a_mismatch_is_named() {
        let ours = SdrConfig { channels: 2, chunk_bytes: 4096, ..SdrConfig::default() };
        let error = info().check_against(&ours).unwrap_err();
        assert!(error.to_string().contains("chunks of 65536, this end 4096"), "{error}");
    }
}
