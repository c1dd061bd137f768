//! The opcode table.

use bowline_wire::{OpKind, Opcode, Position, Service};

#[test]
fn names_are_those_people_know() {
    let name = |code| Opcode(code).to_string();
    assert_eq!(name(0x00), "RC_SEND_FIRST");
    assert_eq!(name(0x0b), "RC_WRITE_ONLY_IMM");
    assert_eq!(name(0x0e), "RC_READ_RESP_MID");
    assert_eq!(name(0x14), "RC_FETCH_ADD");
    assert_eq!(name(0x17), "RC_SEND_ONLY_INV");
    assert_eq!(name(0x1f), "RC_REPAIR");
    assert_eq!(name(0x2b), "UC_WRITE_ONLY_IMM");
    assert_eq!(name(0x64), "UD_SEND_ONLY");
    assert_eq!(name(0x81), "CNP");
    assert_eq!(name(0xc7), "XP_WRITE_LAST_IMM");
    assert_eq!(name(0x5c), "0x5c");
}

#[test]
fn header_lengths_are_those_of_the_specification() {
    let len = |opcode: Opcode| opcode.info().unwrap().ext_len;
    assert_eq!(len(Opcode::RC_SEND_MIDDLE), 0);
    assert_eq!(len(Opcode::RC_SEND_ONLY_IMM), 4);
    assert_eq!(len(Opcode::RC_WRITE_FIRST), 16);
    assert_eq!(len(Opcode::RC_WRITE_MIDDLE), 0);
    assert_eq!(len(Opcode::RC_WRITE_LAST_IMM), 4);
    assert_eq!(len(Opcode::RC_WRITE_ONLY_IMM), 20);
    assert_eq!(len(Opcode::RC_READ_REQ), 16);
    assert_eq!(len(Opcode::RC_READ_RESP_MID), 0);
    assert_eq!(len(Opcode::RC_ACK), 4);
    assert_eq!(len(Opcode::RC_ATOMIC_ACK), 12);
    assert_eq!(len(Opcode::RC_CMP_SWAP), 28);
    assert_eq!(len(Opcode::UD_SEND_ONLY_IMM), 12);
    assert_eq!(len(Opcode::RD_WRITE_ONLY_IMM), 32);
    assert_eq!(len(Opcode::XRC_FETCH_ADD), 32);
    assert_eq!(len(Opcode::XP_SEND_MIDDLE), 16);
    assert_eq!(len(Opcode::XP_WRITE_LAST_IMM), 36);
    assert_eq!(len(Opcode::XP_READ_REQ), 36);
    assert_eq!(len(Opcode::XP_FEEDBACK), 32);
}

#[test]
fn the_table_agrees_with_itself() {
    for code in 0..=u8::MAX {
        let opcode = Opcode(code);
        let Some(info) = opcode.info() else { continue };
        assert_eq!(Some(info.service), opcode.service(), "{opcode}");
        assert!(info.name.starts_with(info.service.name()), "{opcode}");
        assert_eq!(info.name.contains("FIRST"), info.position == Position::First, "{opcode}");
        assert_eq!(info.name.contains("LAST"), info.position == Position::Last, "{opcode}");
        assert_eq!(info.name.contains("IMM"), info.has_imm, "{opcode}");
        assert_eq!(info.name.contains("INV"), info.has_invalidate, "{opcode}");
        assert_eq!(info.name.contains("SEND"), info.kind == OpKind::Send, "{opcode}");
        assert_eq!(info.name.contains("WRITE"), info.kind == OpKind::Write, "{opcode}");
        assert_eq!(info.ext.aeth.is_some(), {
            let acknowledges = info.service != Service::Xp && info.position != Position::Middle;
            info.kind.is_response() && acknowledges
        });
    }
}

#[test]
fn positions_start_and_end_messages() {
    use Position::*;
    let ends = |p: Position| (p.starts(), p.ends());
    assert_eq!(
        [First, Middle, Last, Only].map(ends),
        [(true, false), (false, false), (false, true), (true, true)]
    );
    assert_eq!(Opcode(0xc0).service(), Some(Service::Xp));
    assert_eq!(Opcode(0xe0).service(), Some(Service::Sealed));
    assert_eq!(Opcode(0xe1).service(), None);
    assert_eq!(Opcode(0x81).service(), Some(Service::Cnp));
}
