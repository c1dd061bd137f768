-- Bowline's own packets in Wireshark and tshark: XP (docs/xp.md) and forward error correction
-- (docs/fec.md). All other packets of RoCEv2 go to Wireshark's own dissector.
--
--   wireshark -X lua_script:lab/wireshark/bowline.lua capture.pcap
--
-- or copy it to ~/.local/lib/wireshark/plugins/.

local ROCEV2_PORT = 4791
local BTH_LEN, ICRC_LEN = 12, 4
local RC_ACK, FEC = 0x11, 0x1f
-- Reserved bits of an acknowledgement by which a FEC shim greets its peer.
local GREETING = 0x5c

-- Headers behind the BTH, in their order.
local XP = {
  [0xc0] = { "XP_SEND_MIDDLE", "xpeth" },
  [0xc1] = { "XP_SEND_LAST", "xpeth" },
  [0xc2] = { "XP_SEND_MIDDLE_IMM", "xpeth", "imm" },
  [0xc3] = { "XP_SEND_LAST_IMM", "xpeth", "imm" },
  [0xc4] = { "XP_WRITE_MIDDLE", "xpeth", "reth" },
  [0xc5] = { "XP_WRITE_LAST", "xpeth", "reth" },
  [0xc6] = { "XP_WRITE_MIDDLE_IMM", "xpeth", "reth", "imm" },
  [0xc7] = { "XP_WRITE_LAST_IMM", "xpeth", "reth", "imm" },
  [0xc8] = { "XP_READ_REQ", "xpeth", "reth", "left" },
  [0xc9] = { "XP_READ_RESP_MID", "xpeth" },
  [0xca] = { "XP_READ_RESP_LAST", "xpeth" },
  [0xd0] = { "XP_PROBE", "xpcc" },
  [0xd1] = { "XP_FEEDBACK", "xpcc" },
}

local opcode_names = { [FEC] = "RC_REPAIR" }
for opcode, row in pairs(XP) do opcode_names[opcode] = row[1] end

local bowline = Proto("bowline", "Bowline")
local f = bowline.fields
f.opcode = ProtoField.uint8("bowline.opcode", "Opcode", base.HEX, opcode_names)
f.pkey = ProtoField.uint16("bowline.pkey", "Partition", base.HEX)
f.pad = ProtoField.uint8("bowline.pad", "Pad bytes", base.DEC, nil, 0x30)
f.dest_qpn = ProtoField.uint24("bowline.dest_qpn", "Destination QP", base.HEX)
f.psn = ProtoField.uint24("bowline.psn", "PSN", base.HEX)
f.payload = ProtoField.bytes("bowline.payload", "Payload")
f.icrc = ProtoField.uint32("bowline.icrc", "ICRC", base.HEX)

f.wqe_seq = ProtoField.uint32("bowline.xp.wqe_seq", "Message", base.HEX)
f.recv_seq = ProtoField.uint32("bowline.xp.recv_seq", "Receives before it", base.HEX)
f.len = ProtoField.uint32("bowline.xp.len", "Bytes of the message", base.DEC)
f.stride_log2 = ProtoField.uint8("bowline.xp.stride_log2", "Stride, as a power of two", base.DEC)
f.token = ProtoField.uint24("bowline.xp.token", "Token", base.HEX)
f.left = ProtoField.uint32("bowline.xp.time_left_us", "Time left (µs)", base.DEC)
f.va = ProtoField.uint64("bowline.reth.va", "Address", base.HEX)
f.rkey = ProtoField.uint32("bowline.reth.rkey", "Remote key", base.HEX)
f.dma_len = ProtoField.uint32("bowline.reth.len", "Length", base.DEC)
f.imm = ProtoField.uint32("bowline.imm", "Immediate", base.HEX)
f.stamp_ns = ProtoField.uint32("bowline.xpcc.stamp_ns", "Stamp (ns)", base.DEC)
f.hold_ns = ProtoField.uint32("bowline.xpcc.hold_ns", "Held for (ns)", base.DEC)
f.bytes = ProtoField.uint64("bowline.xpcc.bytes", "Payload bytes so far", base.DEC)
f.marked_bytes = ProtoField.uint32("bowline.xpcc.marked_bytes", "Marked bytes", base.DEC)
f.credit_bytes = ProtoField.uint32("bowline.xpcc.credit_bytes", "Bytes granted", base.DEC)
f.arrival = ProtoField.uint32("bowline.xpcc.arrival", "Arrival (64 ns)", base.DEC)

local fec_types = { [1] = "repair", [2] = "announce", [3] = "report" }
f.fec_version = ProtoField.uint8("bowline.fec.version", "Version", base.DEC, nil, 0xf0)
f.fec_type = ProtoField.uint8("bowline.fec.type", "Type", base.DEC, fec_types, 0x0f)
f.fec_response = ProtoField.bool("bowline.fec.response", "Of answers", 8, nil, 0x01)
f.fec_has_first = ProtoField.bool("bowline.fec.has_first", "Begins a message", 8, nil, 0x02)
f.fec_has_last = ProtoField.bool("bowline.fec.has_last", "Ends a message", 8, nil, 0x04)
f.fec_has_ext = ProtoField.bool("bowline.fec.has_ext", "Has extended headers", 8, nil, 0x08)
f.fec_wants = ProtoField.bool("bowline.fec.wants_reports", "Wants reports", 8, nil, 0x01)
f.fec_r = ProtoField.uint8("bowline.fec.r", "Packets of a block", base.DEC)
f.fec_c = ProtoField.uint8("bowline.fec.c", "Lanes of a block", base.DEC)
f.fec_isn = ProtoField.uint8("bowline.fec.isn", "Lane", base.DEC)
f.fec_base = ProtoField.uint24("bowline.fec.base_psn", "First PSN of the block", base.HEX)
f.fec_count = ProtoField.uint8("bowline.fec.count", "Packets of this block", base.DEC)
f.fec_opcode = ProtoField.uint8("bowline.fec.opcode", "XOR of opcodes", base.HEX)
f.fec_xor_len = ProtoField.uint16("bowline.fec.xor_len", "XOR of lengths", base.HEX)
f.fec_last_len = ProtoField.uint16("bowline.fec.last_len", "Payload of the last packet", base.DEC)
f.fec_generation = ProtoField.uint8("bowline.fec.generation", "Generation", base.DEC)
f.fec_longest = ProtoField.uint16("bowline.fec.longest_burst", "Longest burst", base.DEC)
f.fec_expected = ProtoField.uint32("bowline.fec.expected", "Packets expected", base.DEC)
f.fec_lost = ProtoField.uint32("bowline.fec.lost", "Lost", base.DEC)
f.fec_bursts = ProtoField.uint32("bowline.fec.bursts", "Bursts", base.DEC)
f.fec_unrepaired = ProtoField.uint32("bowline.fec.unrepaired", "Not repaired", base.DEC)
f.fec_greeting = ProtoField.bool("bowline.fec.greeting", "Greeting of a FEC shim")

local too_short = ProtoExpert.new("bowline.short", "The packet ends early",
  expert.group.MALFORMED, expert.severity.ERROR)
bowline.experts = { too_short }

-- One header: its length, and what it adds to a tree.
local headers = {
  xpeth = { 16, "XPETH", function(tree, b)
    tree:add(f.wqe_seq, b(0, 4))
    tree:add(f.recv_seq, b(4, 4))
    tree:add(f.len, b(8, 4))
    tree:add(f.stride_log2, b(12, 1))
    tree:add(f.token, b(13, 3))
  end },
  reth = { 16, "RETH", function(tree, b)
    tree:add(f.va, b(0, 8))
    tree:add(f.rkey, b(8, 4))
    tree:add(f.dma_len, b(12, 4))
  end },
  imm = { 4, "ImmDt", function(tree, b) tree:add(f.imm, b(0, 4)) end },
  left = { 4, "Time left", function(tree, b) tree:add(f.left, b(0, 4)) end },
  xpcc = { 32, "XPCC", function(tree, b)
    tree:add(f.token, b(1, 3))
    tree:add(f.stamp_ns, b(4, 4))
    tree:add(f.hold_ns, b(8, 4))
    tree:add(f.bytes, b(12, 8))
    tree:add(f.marked_bytes, b(20, 4))
    tree:add(f.credit_bytes, b(24, 4))
    tree:add(f.arrival, b(28, 4))
  end },
}

local function repair(tree, b)
  for _, flag in ipairs { f.fec_response, f.fec_has_first, f.fec_has_last, f.fec_has_ext } do
    tree:add(flag, b(1, 1))
  end
  tree:add(f.fec_r, b(2, 1))
  tree:add(f.fec_c, b(3, 1))
  tree:add(f.fec_isn, b(4, 1))
  tree:add(f.fec_base, b(5, 3))
  tree:add(f.fec_count, b(8, 1))
  tree:add(f.fec_opcode, b(9, 1))
  tree:add(f.fec_xor_len, b(12, 2))
  tree:add(f.fec_last_len, b(14, 2))
  tree:add(f.fec_generation, b(16, 1))
end

local function announce(tree, b)
  tree:add(f.fec_wants, b(1, 1))
  tree:add(f.fec_r, b(2, 1))
  tree:add(f.fec_c, b(3, 1))
end

local function report(tree, b)
  tree:add(f.fec_longest, b(2, 2))
  tree:add(f.fec_expected, b(4, 4))
  tree:add(f.fec_lost, b(8, 4))
  tree:add(f.fec_bursts, b(12, 4))
  tree:add(f.fec_unrepaired, b(16, 4))
end

local fec_headers = { [1] = { 20, repair }, [2] = { 4, announce }, [3] = { 20, report } }

-- Adds what a FEC packet says; returns its length, or nothing if there is not enough.
local function add_fec(tree, b)
  if b:len() < 1 then return nil end
  local version, kind = b(0, 1):bitfield(0, 4), fec_headers[b(0, 1):bitfield(4, 4)]
  if version ~= 1 or kind == nil then return 0 end
  if b:len() < kind[1] then return nil end
  local part = tree:add(bowline, b(0, kind[1]), "FEC")
  part:add(f.fec_version, b(0, 1))
  part:add(f.fec_type, b(0, 1))
  kind[2](part, b)
  return kind[1]
end

local function add_xp(tree, b, row)
  local at = 0
  for i = 2, #row do
    local len, name, add = table.unpack(headers[row[i]])
    if b:len() < at + len then return nil end
    add(tree:add(bowline, b(at, len), name), b(at, len):tvb())
    at = at + len
  end
  return at
end

local function dissect_own(buffer, pinfo, tree, opcode)
  pinfo.cols.protocol = "Bowline"
  local body = tree:add(bowline, buffer())
  local bth = body:add(bowline, buffer(0, BTH_LEN), "BTH")
  bth:add(f.opcode, buffer(0, 1))
  bth:add(f.pad, buffer(1, 1))
  bth:add(f.pkey, buffer(2, 2))
  bth:add(f.dest_qpn, buffer(5, 3))
  bth:add(f.psn, buffer(9, 3))
  pinfo.cols.info = string.format("%s QP=0x%06x PSN=%d", opcode_names[opcode],
    buffer(5, 3):uint(), buffer(9, 3):uint())
  local rest_len = buffer:len() - BTH_LEN - ICRC_LEN
  local used
  if rest_len > 0 then
    local rest = buffer(BTH_LEN, rest_len):tvb()
    if opcode == FEC then used = add_fec(body, rest) else used = add_xp(body, rest, XP[opcode]) end
  end
  if used == nil then
    body:add_proto_expert_info(too_short)
    return
  end
  local payload_len = rest_len - used - buffer(1, 1):bitfield(2, 2)
  if payload_len > 0 then
    body:add(f.payload, buffer(BTH_LEN + used, payload_len))
  end
  body:add_le(f.icrc, buffer(buffer:len() - ICRC_LEN, ICRC_LEN))
end

local udp = DissectorTable.get("udp.port")
local standard = udp:get_dissector(ROCEV2_PORT)

function bowline.dissector(buffer, pinfo, tree)
  if buffer:len() < BTH_LEN + ICRC_LEN then return 0 end
  local opcode = buffer(0, 1):uint()
  if opcode == FEC or XP[opcode] then
    dissect_own(buffer, pinfo, tree, opcode)
    return buffer:len()
  end
  local taken = standard and standard:call(buffer, pinfo, tree) or 0
  if opcode == RC_ACK and buffer(8, 1):uint() % 128 == GREETING then
    tree:add(f.fec_greeting, buffer(8, 1), true)
  end
  return taken
end

udp:add(ROCEV2_PORT, bowline)
