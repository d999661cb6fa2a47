package nfnl

// Subsystems of nfnetlink (NFNL_SUBSYS_*, include/uapi/linux/netfilter/nfnetlink.h).
const (
	SubsysConntrack       uint8 = 1  // NFNL_SUBSYS_CTNETLINK
	SubsysConntrackExpect uint8 = 2  // NFNL_SUBSYS_CTNETLINK_EXP
	SubsysIPSet           uint8 = 6  // NFNL_SUBSYS_IPSET
	SubsysNFTables        uint8 = 10 // NFNL_SUBSYS_NFTABLES
	SubsysNFTCompat       uint8 = 11 // NFNL_SUBSYS_NFT_COMPAT
)

// Flags of a message (NLM_F_*, include/uapi/linux/netlink.h). Some share a bit: what it means
// depends on whether the message asks, creates or deletes.
const (
	FlagRequest uint16 = 0x001 // NLM_F_REQUEST; [Batch.Message] sets it on every message
	FlagMulti   uint16 = 0x002 // NLM_F_MULTI: one of several replies
	FlagAck     uint16 = 0x004 // NLM_F_ACK: answer also when all went well
	FlagEcho    uint16 = 0x008 // NLM_F_ECHO
	FlagIntr    uint16 = 0x010 // NLM_F_DUMP_INTR: the dump is inconsistent
	FlagDump    uint16 = 0x300 // NLM_F_DUMP; [Conn.Dump] sets it

	FlagReplace uint16 = 0x100 // NLM_F_REPLACE, for messages that create
	FlagExcl    uint16 = 0x200 // NLM_F_EXCL: fail if it exists
	FlagCreate  uint16 = 0x400 // NLM_F_CREATE
	FlagAppend  uint16 = 0x800 // NLM_F_APPEND

	FlagNonRec uint16 = 0x100 // NLM_F_NONREC, for messages that delete
	FlagBulk   uint16 = 0x200 // NLM_F_BULK, for messages that delete
)

// Message is one message of the kernel: its headers taken apart, its attributes still in wire
// form for [Attrs]. Inside the function given to [Conn.Dump], Attrs points into the receive buffer and is
// valid until that function returns.
type Message struct {
	Subsys uint8  // high byte of nlmsg_type: one of the Subsys constants
	Type   uint8  // low byte of nlmsg_type, for example NFT_MSG_NEWSET
	Flags  uint16 // nlmsg_flags
	Seq    uint32 // nlmsg_seq
	Family uint8  // nfgen_family, NFPROTO_*
	ResID  uint16 // res_id, host byte order; nf_tables puts the low half of its generation id here
	Attrs  []byte
}
