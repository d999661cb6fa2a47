package nft

// Numbers of include/uapi/linux/netfilter/nf_tables.h, in the order of its enums. The constants of
// golang.org/x/sys/unix exist on Linux only; a test compares them with ours.

// Messages (enum nf_tables_msg_types).
const (
	MsgNewTable = iota
	MsgGetTable
	MsgDelTable
	MsgNewChain
	MsgGetChain
	MsgDelChain
	MsgNewRule
	MsgGetRule
	MsgDelRule
	MsgNewSet
	MsgGetSet
	MsgDelSet
	MsgNewSetElem
	MsgGetSetElem
	MsgDelSetElem
	_ // NFT_MSG_NEWGEN
	_ // NFT_MSG_GETGEN
	MsgTrace
)

// Attributes of a table (enum nft_table_attributes).
const (
	AttrTableName = iota + 1
	attrTableFlags
	attrTableUse
)

// Flags of a table (enum nft_table_flags).
const (
	tableDormant = 1 << iota // NFT_TABLE_F_DORMANT
	tableOwner               // NFT_TABLE_F_OWNER, since Linux 5.12
)

// Attributes of a chain (enum nft_chain_attributes).
const (
	AttrChainTable = iota + 1
	_              // NFTA_CHAIN_HANDLE
	AttrChainName
	attrChainHook
	attrChainPolicy
	attrChainUse
	attrChainType
)

// Attributes of a hook (enum nft_hook_attributes).
const (
	attrHookNumber = iota + 1
	attrHookPriority
)

// Hooks (enum nf_inet_hooks in include/uapi/linux/netfilter.h).
const (
	HookPrerouting = iota
	HookInput
	HookForward
	HookOutput
	HookPostrouting
)

// Attributes of a rule (enum nft_rule_attributes).
const (
	AttrRuleTable = iota + 1
	AttrRuleChain
	attrRuleHandle
	attrRuleExpressions
	attrRuleCompat
	attrRulePosition
	attrRuleUserData
)

// Attributes of the protocol of a rule, for x_tables (enum nft_rule_compat_attributes).
const (
	attrCompatProtocol = iota + 1
	attrCompatFlags
)

// Attributes of a set (enum nft_set_attributes).
const (
	AttrSetTable = iota + 1
	AttrSetName
	attrSetFlags
	attrSetKeyType
	attrSetKeyLen
	attrSetDataType
	attrSetDataLen
	_ // NFTA_SET_POLICY
	attrSetDesc
	attrSetID
	_ // NFTA_SET_TIMEOUT
	_ // NFTA_SET_GC_INTERVAL
	attrSetUserData

	attrSetCount = 20 // NFTA_SET_COUNT, since Linux 6.16
)

// Attributes of a set's description (enum nft_set_desc_attributes), and of a field of its key (enum
// nft_set_field_attributes).
const (
	attrDescSize = iota + 1
	attrDescConcat

	attrFieldLen = 1
)

// Flags of a set (enum nft_set_flags).
const (
	setAnonymous = 1 << iota
	setConstant
	SetInterval
	SetMap
	SetTimeout
	SetEval
	_ // NFT_SET_OBJECT
	SetConcat
)

const dataTypeVerdict = 0xffffff00 // NFT_DATA_VERDICT

const verdictLen = 16 // struct nft_verdict

// Attributes of a list of elements (enum nft_set_elem_list_attributes).
const (
	AttrElemsTable = iota + 1
	AttrElemsSet
	AttrElemsList
	attrElemsSetID
)

// Attributes of an element (enum nft_set_elem_attributes).
const (
	elemKey = iota + 1
	elemData
	_ // NFTA_SET_ELEM_FLAGS
	elemTimeout
	elemExpiration
	elemUserData
	elemExpr
	_ // NFTA_SET_ELEM_PAD
	_ // NFTA_SET_ELEM_OBJREF
	elemKeyEnd
)

const listElem = 1 // NFTA_LIST_ELEM, in every list

// Attributes of a register's content (enum nft_data_attributes) and of a verdict (enum
// nft_verdict_attributes).
const (
	DataValue = iota + 1
	DataVerdict

	AttrVerdictCode  = 1
	AttrVerdictChain = 2
)

// Verdicts (NF_DROP and NF_ACCEPT in include/uapi/linux/netfilter.h; enum nft_verdicts).
const (
	VerdictReturn = iota - 5
	VerdictGoto
	VerdictJump
	_ // NFT_BREAK
	_ // NFT_CONTINUE
	VerdictDrop
	VerdictAccept
	VerdictStolen
	VerdictQueue

	VerdictMask = 0xff // NF_VERDICT_MASK: the rest is an argument
)

// Registers (enum nft_registers). The registers from NFT_REG_1 on have 16 bytes. Each of them is
// the same memory as four registers from NFT_REG32_00 on.
const (
	RegVerdict = 0
	Reg1       = 1
	reg32_00   = 8
)

// Attributes of an expression (enum nft_expr_attributes).
const (
	exprName = iota + 1
	exprData
)

// Attributes of payload (enum nft_payload_attributes).
const (
	AttrPayloadDReg = iota + 1
	AttrPayloadBase
	AttrPayloadOffset
	AttrPayloadLen
	attrPayloadSReg
	attrPayloadCSumType
	attrPayloadCSumOffset
	attrPayloadCSumFlags
)

// Corrections of checksums after a change of a header (enum nft_payload_csum_types and
// nft_payload_csum_flags).
const (
	csumInet       = 1
	csumL4         = 1 << 0 // the pseudo header of TCP and UDP
	ipv4CSumOffset = 10
)

// The header that payload reads (enum nft_payload_bases).
const (
	NetworkHeader   = 1
	TransportHeader = 2
)

// Attributes of meta (enum nft_meta_attributes).
const (
	AttrMetaDReg = iota + 1
	AttrMetaKey
	attrMetaSReg
)

// Keys of meta (enum nft_meta_keys).
const (
	MetaMark    = 3
	MetaIIFName = 6
	metaNFTrace = 12
	metaNFProto = 15
	MetaL4Proto = 16
)

// Attributes of ct (enum nft_ct_attributes).
const (
	attrCTDReg = iota + 1
	attrCTKey
	attrCTDirection
)

// Keys of ct (enum nft_ct_keys).
const (
	ctState     = 0
	ctDirection = 1
	ctStatus    = 2
	ctProtocol  = 10
	ctProtoSrc  = 11
	ctProtoDst  = 12
	ctSrcIP     = 19
	ctDstIP     = 20
	ctSrcIP6    = 21
	ctDstIP6    = 22
)

// Attributes of cmp (enum nft_cmp_attributes).
const (
	AttrCmpSReg = iota + 1
	AttrCmpOp
	AttrCmpData
)

// The comparisons of cmp (enum nft_cmp_ops).
const (
	CmpEq = iota
	CmpNeq
	_ // NFT_CMP_LT
	CmpLte
	_ // NFT_CMP_GT
	CmpGte
)

// Attributes of bitwise (enum nft_bitwise_attributes).
const (
	AttrBitwiseSReg = iota + 1
	AttrBitwiseDReg
	attrBitwiseLen
	AttrBitwiseMask
	AttrBitwiseXor
)

// Attributes of range (enum nft_range_attributes).
const (
	AttrRangeSReg = iota + 1
	AttrRangeOp
	AttrRangeFrom
	AttrRangeTo
)

// RangeEq makes range match values inside it (enum nft_range_ops).
const RangeEq = 0

// Attributes of lookup (enum nft_lookup_attributes).
const (
	attrLookupSet = iota + 1
	attrLookupSReg
	attrLookupDReg
	attrLookupSetID
	attrLookupFlags
)

const lookupInvert = 1 // NFT_LOOKUP_F_INV

// Attributes of immediate (enum nft_immediate_attributes).
const (
	AttrImmediateDReg = iota + 1
	AttrImmediateData
)

// Attributes of counter (enum nft_counter_attributes).
const (
	attrCounterBytes = iota + 1
	attrCounterPackets
)

// Attributes of match and target (enum nft_match_attributes, enum nft_target_attributes).
const (
	AttrExtensionName = iota + 1
	AttrExtensionRev
	AttrExtensionInfo
)

// Attributes of hash (enum nft_hash_attributes).
const (
	attrHashSReg = iota + 1
	attrHashDReg
	attrHashLen
	attrHashModulus
	attrHashSeed
	attrHashOffset
	attrHashType
)

const hashJenkins = 0 // NFT_HASH_JENKINS

// Attributes of numgen (enum nft_ng_attributes).
const (
	attrNumgenDReg = iota + 1
	attrNumgenModulus
	attrNumgenType
	attrNumgenOffset
)

const (
	numgenInc    = 0 // NFT_NG_INCREMENTAL
	numgenRandom = 1 // NFT_NG_RANDOM
)

// Attributes of nat (enum nft_nat_attributes).
const (
	attrNATType = iota + 1
	attrNATFamily
	attrNATRegAddrMin
	_ // NFTA_NAT_REG_ADDR_MAX
	attrNATRegProtoMin
	_ // NFTA_NAT_REG_PROTO_MAX
	attrNATFlags
)

// Types of nat (enum nft_nat_types).
const (
	natSNAT = iota
	natDNAT
)

const attrMasqFlags = 1 // NFTA_MASQ_FLAGS

const natFullyRandom = 1 << 4 // NF_NAT_RANGE_PROTO_RANDOM_FULLY

const attrLogPrefix = 2 // NFTA_LOG_PREFIX

// Attributes of reject (enum nft_reject_attributes).
const (
	attrRejectType = iota + 1
	attrRejectCode
)

// The answers of reject (enum nft_reject_types).
const (
	rejectICMPUnreach = iota
	rejectTCPReset
)

// Attributes of fib (enum nft_fib_attributes).
const (
	attrFIBDReg = iota + 1
	attrFIBResult
	attrFIBFlags
)

// The address that fib looks up and how (enum nft_fib_flags), and the result that it returns (enum
// nft_fib_result).
const (
	fibSaddr     = 1 << 0
	fibDaddr     = 1 << 1
	fibIIF       = 1 << 3 // only routes through the interface on which the packet arrived
	fibPresent   = 1 << 5 // only whether there is a result
	fibInterface = 1
	fibAddrType  = 3
)

const rtnLocal = 2 // RTN_LOCAL (include/uapi/linux/rtnetlink.h)

// Attributes of dynset (enum nft_dynset_attributes).
const (
	attrDynsetSet = iota + 1
	_             // NFTA_DYNSET_SET_ID
	attrDynsetOp
	attrDynsetKeyReg
	attrDynsetDataReg
	attrDynsetTimeout
	attrDynsetExpr
)

const dynsetUpdate = 1 // NFT_DYNSET_OP_UPDATE

// The state, status and direction of a flow (include/uapi/linux/netfilter/nf_conntrack_common.h and
// nf_conntrack_tuple_common.h).
const (
	ctStateEstablished = 1 << 1 // NF_CT_STATE_BIT(IP_CT_ESTABLISHED)
	ctStateRelated     = 1 << 2 // NF_CT_STATE_BIT(IP_CT_RELATED)
	ctStateNew         = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)
	ctConfirmed        = 1 << 3 // IPS_CONFIRMED
	ctSNAT             = 1 << 4 // IPS_SRC_NAT
	ctDNAT             = 1 << 5 // IPS_DST_NAT
	ctDirOriginal      = 0      // IP_CT_DIR_ORIGINAL
	ctDirReply         = 1      // IP_CT_DIR_REPLY
)

// Offsets of header fields that rules match. TCP, UDP and SCTP agree on the offset of the ports.
const (
	dportOffset    = 2
	portLen        = 2
	protocolLen    = 1
	tcpFlagsOffset = 13
)

const (
	interfaceNameLen = 16  // IFNAMSIZ
	maxUserData      = 256 // NFT_USERDATA_MAXLEN
)
