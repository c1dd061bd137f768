//! What the two ends of an SDR connection exchange out of band.

use bowline_nic::Mtu;
use bowline_wire::Qpn;

use crate::config::{SdrConfig, Transport};
use crate::error::SdrError;
use crate::imm::ImmLayout;
use crate::token::Token;
use crate::ud;

/// Version 3 has the token of the control channel, version 4 its stamps and reports, version 5
/// several messages of the reliable layer in one control message.
const VERSION: u8 = 6;

/// One end's QPs and keys, and the parameters that both must share.
#[derive(Clone, Debug, PartialEq)]
pub struct SdrInfo {
    pub(crate) config: SdrConfig,
    pub(crate) control: Qpn,
    /// The token that control messages to this end must carry.
    pub(crate) token: Token,
    /// By generation, then channel.
    pub(crate) qpns: Vec<Qpn>,
    /// The root key of each generation; empty over datagrams.
    pub(crate) roots: Vec<u32>,
    /// The Q_Key that datagrams must carry.
    pub(crate) qkey: Option<u32>,
}

impl SdrInfo {
    /// Encodes it for transfer to the peer by any means.
    pub fn to_bytes(&self) -> Vec<u8> {
        let config = &self.config;
        let mut out = vec![VERSION, config.transport as u8];
        out.extend(config.layout.bits());
        out.extend([config.generations as u8, config.channels as u8]);
        out.extend(config.mtu.bytes().to_be_bytes());
        out.extend(config.chunk_bytes.to_be_bytes());
        out.extend(config.max_message.to_be_bytes());
        out.extend(self.control.get().to_be_bytes());
        out.extend(self.token.to_bytes());
        for qpn in &self.qpns {
            out.extend(qpn.get().to_be_bytes());
        }
        for key in self.roots.iter().chain(&self.qkey) {
            out.extend(key.to_be_bytes());
        }
        out
    }

    /// The QP of the control channel. QP numbers are not secret.
    pub fn control(&self) -> Qpn {
        self.control
    }

    /// The QPs that receive messages, by generation, then channel.
    pub fn data(&self) -> &[Qpn] {
        &self.qpns
    }

    /// The root keys of all generations, under which messages are written: to be rewritten on the
    /// way to a member of a group. Empty over datagrams.
    pub fn roots(&self) -> &[u32] {
        &self.roots
    }

    /// Bytes under each root key, from address 0 on.
    pub fn root_len(&self) -> u64 {
        self.config.root_len()
    }

    /// QPs of each generation.
    pub fn channels(&self) -> usize {
        self.config.channels as usize
    }

    /// Decodes what a peer has sent.
    pub fn from_bytes(bytes: &[u8]) -> Result<SdrInfo, SdrError> {
        let mut rest = bytes;
        let [version] = take(&mut rest)?;
        if version != VERSION {
            return Err(SdrError::Version { theirs: version, ours: VERSION });
        }
        let [transport, id, offset, user, generations, channels] = take(&mut rest)?;
        let transport = [Transport::Uc, Transport::Ud].into_iter().find(|t| *t as u8 == transport);
        let layout = ImmLayout::new(id, offset, user);
        let mtu = Mtu::from_bytes(u32::from_be_bytes(take(&mut rest)?));
        let chunk_bytes = u32::from_be_bytes(take(&mut rest)?);
        let max_message = u64::from_be_bytes(take(&mut rest)?);
        let config = SdrConfig {
            transport: transport.ok_or(SdrError::Info("no such transport"))?,
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
        let token = Token::from_bytes(take(&mut rest)?);
        let count = config.generations * config.channels;
        let qpns = (0..count).map(|_| take_qpn(&mut rest)).collect::<Result<_, _>>()?;
        let mut key = || take(&mut rest).map(u32::from_be_bytes);
        let (roots, qkey) = match config.transport {
            Transport::Uc => {
                ((0..config.generations).map(|_| key()).collect::<Result<_, _>>()?, None)
            }
            Transport::Ud => (Vec::new(), Some(key()?)),
        };
        if qkey.is_some_and(|qkey| qkey & ud::PRIVILEGED != 0) {
            return Err(SdrError::Info("its Q_Key is one of the privileged"));
        }
        if !rest.is_empty() {
            return Err(SdrError::Info("it is longer than it says"));
        }
        Ok(SdrInfo { config, control, token, qpns, roots, qkey })
    }

    /// Rejects a peer whose parameters differ from ours.
    pub(crate) fn check_against(&self, ours: &SdrConfig) -> Result<(), SdrError> {
        let theirs = &self.config;
        if ours.transport != theirs.transport {
            let [ours, theirs] = [ours, theirs].map(|c| c.transport.name().to_owned());
            return Err(SdrError::Mismatch { what: "transport", ours, theirs });
        }
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
        let config = SdrConfig { channels: 2, generations: 4, ..SdrConfig::default() };
        SdrInfo {
            config,
            control: Qpn::new(7),
            token: Token::from_bytes([0x5a; 16]),
            qpns: (10..18).map(Qpn::new).collect(),
            roots: vec![1, 2, 3, 4],
            qkey: None,
        }
    }

    fn datagrams() -> SdrInfo {
        let config = SdrConfig { transport: Transport::Ud, ..info().config };
        SdrInfo { config, roots: Vec::new(), qkey: Some(0x1234_5678), ..info() }
    }

    #[test]
    fn it_survives_the_journey() {
        for info in [info(), datagrams()] {
            assert_eq!(SdrInfo::from_bytes(&info.to_bytes()).unwrap(), info);
        }
    }

    #[test]
    fn an_older_release_is_named() {
        let mut bytes = info().to_bytes();
        bytes[0] = 2;
        let error = SdrInfo::from_bytes(&bytes).unwrap_err();
        assert!(error.to_string().contains("version 2, this end version 6"), "{error}");
    }

    proptest! {
        #[test]
        fn rubbish_is_refused_without_a_panic(
            mut bytes in prop_oneof![Just(info().to_bytes()), Just(datagrams().to_bytes())],
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
        let ours = SdrConfig { chunk_bytes: 4096, ..info().config };
        let error = info().check_against(&ours).unwrap_err();
        assert!(error.to_string().contains("chunks of 65536, this end 4096"), "{error}");
        let error = datagrams().check_against(&info().config).unwrap_err();
        assert!(error.to_string().contains("transport UD, this end UC"), "{error}");
    }

    #[test]
    fn a_privileged_q_key_is_refused() {
        let info = SdrInfo { qkey: Some(ud::PRIVILEGED | 1), ..datagrams() };
        assert!(matches!(SdrInfo::from_bytes(&info.to_bytes()), Err(SdrError::Info(_))));
    }
}
