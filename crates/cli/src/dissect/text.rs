//! A dissection as text.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::ext::{Ext, Fec};
use super::record::{Icrc, Record, Totals};

/// Writes one packet as a line.
pub(super) fn write_record(out: &mut impl Write, record: &Record) -> io::Result<()> {
    writeln!(
        out,
        "{:>11.6} {} > {} {} qp={:#x} psn={:#x} flags={}{} payload={} icrc={}{}",
        record.time_s,
        record.src,
        record.dst,
        record.opcode,
        record.dest_qpn,
        record.psn,
        flags(record),
        extended(&record.ext),
        record.payload_len,
        verdict(record.icrc),
        record.malformed.as_ref().map_or(String::new(), |reason| format!(" malformed: {reason}")),
    )
}

/// Writes the counts, by opcode and by ICRC result.
pub(super) fn write_totals(out: &mut impl Write, totals: &Totals) -> io::Result<()> {
    writeln!(
        out,
        "\n{} packets: ICRC ok {}, BAD {}",
        totals.packets, totals.icrc_ok, totals.icrc_bad
    )?;
    if totals.icrc_unchecked > 0 {
        writeln!(out, "  {} cut by the capture, ICRC not checked", totals.icrc_unchecked)?;
    }
    let width = totals.by_opcode.keys().map(String::len).max().unwrap_or(0);
    for (opcode, count) in &totals.by_opcode {
        writeln!(out, "  {opcode:width$} {count:>8}")?;
    }
    if totals.other > 0 {
        writeln!(out, "{} other frames", totals.other)?;
    }
    if totals.malformed > 0 {
        writeln!(out, "{} malformed:", totals.malformed)?;
    }
    for (reason, count) in &totals.malformed_reasons {
        writeln!(out, "  {count:>8} {reason}")?;
    }
    Ok(())
}

fn flags(record: &Record) -> String {
    let flags = [
        ('A', record.ack_req),
        ('S', record.solicited),
        ('M', record.mig_req),
        ('F', record.fecn),
        ('B', record.becn),
    ];
    let set: String = flags.into_iter().filter_map(|(name, on)| on.then_some(name)).collect();
    if set.is_empty() { "-".to_owned() } else { set }
}

fn extended(ext: &Ext) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = push_extended(ext, &mut text);
    text
}

fn push_extended(ext: &Ext, text: &mut String) -> std::fmt::Result {
    if let Some(deth) = ext.deth {
        write!(text, " from={} qkey={:#x}", deth.src_qpn, deth.qkey)?;
    }
    if let Some(reth) = ext.reth {
        write!(text, " va={:#x} rkey={:#x} len={}", reth.va, reth.rkey, reth.len)?;
    }
    if let Some(atomic) = ext.atomic_eth {
        write!(text, " va={:#x} rkey={:#x}", atomic.va, atomic.rkey)?;
        write!(text, " operand={:#x} compare={:#x}", atomic.swap_or_add, atomic.compare)?;
    }
    if let Some(aeth) = ext.aeth {
        write!(text, " [{}] msn={}", aeth.syndrome, aeth.msn)?;
    }
    if let Some(ack) = ext.atomic_ack {
        write!(text, " original={:#x}", ack.original)?;
    }
    if let Some(imm) = ext.imm {
        write!(text, " imm={imm:#x}")?;
    }
    if let Some(xp) = ext.xpeth {
        write!(text, " seq={:#x} recv={:#x} message={}", xp.wqe_seq, xp.recv_seq, xp.len)?;
        write!(text, " token={:#x}", xp.token.get())?;
        if xp.stride_log2 > 0 {
            write!(text, " stride={}", 1_u64.checked_shl(xp.stride_log2.into()).unwrap_or(0))?;
        }
    }
    if let Some(left) = ext.time_left_us {
        write!(text, " left={left}us")?;
    }
    if let Some(cc) = ext.xpcc {
        write!(text, " token={:#x} stamp={} hold={}", cc.token.get(), cc.stamp_ns, cc.hold_ns)?;
        write!(text, " bytes={} marked={}", cc.bytes, cc.marked_bytes)?;
        write!(text, " credit={} arrival={}", cc.credit_bytes, cc.arrival)?;
    }
    if let Some(rkey) = ext.invalidate_rkey {
        write!(text, " invalidate={rkey:#x}")?;
    }
    ext.fec.as_ref().map_or(Ok(()), |fec| push_fec(fec, text))
}

fn push_fec(fec: &Fec, text: &mut String) -> std::fmt::Result {
    match fec {
        Fec::Repair { response, r, c, isn, base_psn, count, generation, .. } => {
            let stream = if *response { " of answers" } else { "" };
            write!(text, " repair{stream} lane={isn} code={r},{c} block={base_psn:#x}+{count}")?;
            write!(text, " generation={generation}")
        }
        Fec::Announce { wants_reports, r, c } => {
            write!(text, " announce code={r},{c} wants_reports={wants_reports}")
        }
        Fec::Report { expected, lost, bursts, unrepaired, longest_burst } => {
            write!(text, " report expected={expected} lost={lost} unrepaired={unrepaired}")?;
            write!(text, " bursts={bursts} longest={longest_burst}")
        }
    }
}

fn verdict(icrc: Icrc) -> &'static str {
    match icrc {
        Icrc::Ok => "ok",
        Icrc::Bad => "BAD",
        Icrc::Unchecked => "unchecked",
    }
}
