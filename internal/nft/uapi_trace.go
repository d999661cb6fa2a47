package nft

// Numbers of traces in include/uapi/linux/netfilter/nf_tables.h, written as in uapi.go.

// GroupTrace is the multicast group of traces (NFNLGRP_NFTRACE in
// include/uapi/linux/netfilter/nfnetlink.h).
const GroupTrace = 9

// Attributes of an event of a trace (enum nft_trace_attributes).
const (
	attrTraceTable = iota + 1
	attrTraceChain
	attrTraceRuleHandle
	attrTraceType
	attrTraceVerdict
	attrTraceID
	_ // NFTA_TRACE_LL_HEADER
	attrTraceNetwork
	attrTraceTransport
	attrTraceIIF
	_ // NFTA_TRACE_IIFTYPE
	attrTraceOIF
	_ // NFTA_TRACE_OIFTYPE
	attrTraceMark
	attrTraceNFProto
	attrTracePolicy
)

// Attributes of limit (enum nft_limit_attributes).
const (
	attrLimitRate = iota + 1
	attrLimitUnit
	attrLimitBurst
	attrLimitType
	attrLimitFlags
)

const limitInvert = 1 // NFT_LIMIT_F_INV
