//! Datagrams at the agent that moves connections between NICs.

use core::net::{IpAddr, Ipv4Addr};

use bowline_failover::{Agent, Config, Entry, Mode, Rail, RailNic, Rails};
use bowline_nic::{Connect, QpInit, QpType, Time};
use bowline_wire::{Opcode, Qpn};

use crate::host::{Host, LOCAL, PEER, Packet, Script};

const QKEY: u32 = 0x1234;
const TOKEN: u128 = 0xfeed_f00d;
const PEER_AGENT: Qpn = Qpn::new(55);

struct Nics<'a> {
    hosts: &'a mut [Host; 2],
}

impl Rails for Nics<'_> {
    fn with(&mut self, rail: Rail, f: &mut dyn FnMut(&mut dyn RailNic, Time)) {
        let host = &mut self.hosts[rail.index()];
        f(&mut host.nic, host.now);
    }
}

/// Plays datagrams, failures and time against an agent with one connection. The peer knows the
/// token.
pub(crate) fn run(input: &[u8]) {
    let mut script = Script::new(input);
    if let Ok(entry) = Entry::decode(input) {
        assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
    }
    let mode = if script.byte() & 1 == 0 { Mode::Exact } else { Mode::Shift };
    let second = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 1));
    let mut hosts = [Host::at(LOCAL), Host::at(second)];
    let mut agent = Agent::new(Config::new(mode, QKEY), &mut Nics { hosts: &mut hosts })
        .expect("there are two NICs");
    let qpns = [0, 1].map(|rail: usize| {
        let host = &mut hosts[rail];
        let cq = host.nic.create_cq(64).expect("there is room");
        let init = QpInit::new(QpType::Rc, host.pd, cq);
        let made = match rail {
            0 => host.nic.create_qp(&init),
            _ => host.nic.create_spare_qp(&init),
        };
        made.expect("there is room")
    });
    let now = hosts[0].now;
    hosts[0].nic.connect(now, qpns[0], &Connect::new(PEER, Qpn::new(7))).expect("it is right");
    let link = agent.add(qpns, TOKEN);
    let ours = agent.entry(link).expect("it was added");
    let peer = Entry {
        addrs: [PEER, PEER],
        qpns: [Qpn::new(7), Qpn::new(8)],
        agents: [PEER_AGENT; 2],
        qkey: QKEY,
        token: TOKEN + 1,
        keys_differ: false,
    };
    let _ = agent.connect(&mut Nics { hosts: &mut hosts }, link, &peer);
    while !script.is_over() {
        let op = script.byte();
        let now = hosts[0].now;
        let nics = &mut Nics { hosts: &mut hosts };
        match op % 8 {
            0 => agent.path_failed(now, nics, Rail::Default, qpns[0]),
            1 => agent.port_changed(now, nics, Rail::ALL[usize::from(op >> 7)], op & 0x40 != 0),
            2 => {
                let due = agent.deadline().unwrap_or(now).max(now);
                for host in &mut hosts {
                    host.now = due;
                    host.nic.handle_timeout(due);
                }
            }
            _ => {
                let bytes = datagram(&mut script, &ours);
                let packet = Packet::new(Opcode::UD_SEND_ONLY, ours.agents[0], 0, bytes.len());
                hosts[0].deliver(packet.deth(QKEY, PEER_AGENT).payload(&bytes), 0);
            }
        }
        let now = hosts[0].now;
        agent.handle(now, &mut Nics { hosts: &mut hosts });
        while agent.poll_report().is_some() {}
        hosts.iter_mut().for_each(Host::drain);
    }
    let _ = (agent.moves(), agent.away(), agent.counters());
    hosts.iter().for_each(|host| host.check_untouched(&[]));
}

/// A message as the agents' protocol has it, some fields of which are from the script.
fn datagram(script: &mut Script<'_>, ours: &Entry) -> Vec<u8> {
    let flags = script.byte();
    if flags & 0x80 != 0 {
        return script.piece(64).to_vec();
    }
    let mut bytes = vec![0xb0, 0xf1, 1, script.byte() % 7];
    bytes.extend(ours.qpns[0].get().to_be_bytes());
    bytes.extend((TOKEN ^ u128::from(flags & 1)).to_be_bytes());
    bytes.extend((script.number() as u32).to_be_bytes());
    bytes.extend((script.number() as u32).to_be_bytes());
    bytes.extend([script.byte() % 3, script.byte() % 5, 0, 0]);
    bytes.extend((script.u32() & 0xff_ffff).to_be_bytes());
    bytes.extend(script.number().to_be_bytes());
    bytes
}
