package conntrack

// Messages of ctnetlink (enum cntl_msg_types, include/uapi/linux/netfilter/nfnetlink_conntrack.h,
// like everything else here).
const (
	msgNew         uint8 = 0 // IPCTNL_MSG_CT_NEW
	msgGet         uint8 = 1 // IPCTNL_MSG_CT_GET
	msgDelete      uint8 = 2 // IPCTNL_MSG_CT_DELETE
	msgGetStatsCPU uint8 = 4 // IPCTNL_MSG_CT_GET_STATS_CPU
	msgGetStats    uint8 = 5 // IPCTNL_MSG_CT_GET_STATS
)

// Attributes of a flow (enum ctattr_type).
const (
	attrTupleOrig     uint16 = 1  // CTA_TUPLE_ORIG
	attrTupleReply    uint16 = 2  // CTA_TUPLE_REPLY
	attrStatus        uint16 = 3  // CTA_STATUS
	attrProtoInfo     uint16 = 4  // CTA_PROTOINFO
	attrNATSrc        uint16 = 6  // CTA_NAT_SRC
	attrTimeout       uint16 = 7  // CTA_TIMEOUT
	attrMark          uint16 = 8  // CTA_MARK
	attrCountersOrig  uint16 = 9  // CTA_COUNTERS_ORIG
	attrCountersReply uint16 = 10 // CTA_COUNTERS_REPLY
	attrID            uint16 = 12 // CTA_ID
	attrNATDst        uint16 = 13 // CTA_NAT_DST
	attrZone          uint16 = 18 // CTA_ZONE
	attrTimestamp     uint16 = 20 // CTA_TIMESTAMP
	attrMarkMask      uint16 = 21 // CTA_MARK_MASK
	attrFilter        uint16 = 25 // CTA_FILTER
	attrStatusMask    uint16 = 26 // CTA_STATUS_MASK
)

// Attributes of a tuple (enum ctattr_tuple), of its addresses (enum ctattr_ip) and of its ports
// (enum ctattr_l4proto).
const (
	attrTupleIP    uint16 = 1 // CTA_TUPLE_IP
	attrTupleProto uint16 = 2 // CTA_TUPLE_PROTO
	attrTupleZone  uint16 = 3 // CTA_TUPLE_ZONE

	attrIPv4Src uint16 = 1 // CTA_IP_V4_SRC
	attrIPv4Dst uint16 = 2 // CTA_IP_V4_DST
	attrIPv6Src uint16 = 3 // CTA_IP_V6_SRC
	attrIPv6Dst uint16 = 4 // CTA_IP_V6_DST

	attrProtoNum     uint16 = 1 // CTA_PROTO_NUM
	attrProtoSrcPort uint16 = 2 // CTA_PROTO_SRC_PORT
	attrProtoDstPort uint16 = 3 // CTA_PROTO_DST_PORT
	attrICMPID       uint16 = 4 // CTA_PROTO_ICMP_ID
	attrICMPType     uint16 = 5 // CTA_PROTO_ICMP_TYPE
	attrICMPCode     uint16 = 6 // CTA_PROTO_ICMP_CODE
	attrICMPv6ID     uint16 = 7 // CTA_PROTO_ICMPV6_ID
	attrICMPv6Type   uint16 = 8 // CTA_PROTO_ICMPV6_TYPE
	attrICMPv6Code   uint16 = 9 // CTA_PROTO_ICMPV6_CODE
)

// Attributes of protocol states (enum ctattr_protoinfo and its kin).
const (
	attrProtoInfoTCP  uint16 = 1 // CTA_PROTOINFO_TCP
	attrProtoInfoSCTP uint16 = 3 // CTA_PROTOINFO_SCTP

	attrTCPState      uint16 = 1 // CTA_PROTOINFO_TCP_STATE
	attrTCPFlagsOrig  uint16 = 4 // CTA_PROTOINFO_TCP_FLAGS_ORIGINAL
	attrTCPFlagsReply uint16 = 5 // CTA_PROTOINFO_TCP_FLAGS_REPLY

	attrSCTPState uint16 = 1 // CTA_PROTOINFO_SCTP_STATE
)

// Attributes of counters (enum ctattr_counters), times (enum ctattr_tstamp) and translations (enum
// ctattr_nat, enum ctattr_protonat).
const (
	attrCountPackets uint16 = 1 // CTA_COUNTERS_PACKETS
	attrCountBytes   uint16 = 2 // CTA_COUNTERS_BYTES

	attrTimeStart uint16 = 1 // CTA_TIMESTAMP_START
	attrTimeStop  uint16 = 2 // CTA_TIMESTAMP_STOP

	attrNATIPv4Min uint16 = 1 // CTA_NAT_V4_MINIP
	attrNATProto   uint16 = 3 // CTA_NAT_PROTO
	attrNATIPv6Min uint16 = 4 // CTA_NAT_V6_MINIP

	attrNATPortMin uint16 = 1 // CTA_PROTONAT_PORT_MIN
	attrNATPortMax uint16 = 2 // CTA_PROTONAT_PORT_MAX
)

// Attributes of a filter (enum ctattr_filter), and the bits of its flags. The bits are part of the
// interface although a header of the kernel's own defines them (net/netfilter/nf_internals.h).
const (
	attrFilterOrig  uint16 = 1 // CTA_FILTER_ORIG_FLAGS
	attrFilterReply uint16 = 2 // CTA_FILTER_REPLY_FLAGS

	filterIPSrc   uint32 = 1 << 0 // CTA_FILTER_F_CTA_IP_SRC
	filterIPDst   uint32 = 1 << 1 // CTA_FILTER_F_CTA_IP_DST
	filterProto   uint32 = 1 << 3 // CTA_FILTER_F_CTA_PROTO_NUM
	filterSrcPort uint32 = 1 << 4 // CTA_FILTER_F_CTA_PROTO_SRC_PORT
	filterDstPort uint32 = 1 << 5 // CTA_FILTER_F_CTA_PROTO_DST_PORT
)

// Attributes of statistics (enum ctattr_stats_cpu, enum ctattr_stats_global).
const (
	attrStatsFound         uint16 = 2  // CTA_STATS_FOUND
	attrStatsInvalid       uint16 = 4  // CTA_STATS_INVALID
	attrStatsInsert        uint16 = 8  // CTA_STATS_INSERT
	attrStatsInsertFailed  uint16 = 9  // CTA_STATS_INSERT_FAILED
	attrStatsDrop          uint16 = 10 // CTA_STATS_DROP
	attrStatsEarlyDrop     uint16 = 11 // CTA_STATS_EARLY_DROP
	attrStatsError         uint16 = 12 // CTA_STATS_ERROR
	attrStatsSearchRestart uint16 = 13 // CTA_STATS_SEARCH_RESTART
	attrStatsClashResolve  uint16 = 14 // CTA_STATS_CLASH_RESOLVE
	attrStatsChainTooLong  uint16 = 15 // CTA_STATS_CHAIN_TOOLONG

	attrStatsEntries    uint16 = 1 // CTA_STATS_GLOBAL_ENTRIES
	attrStatsMaxEntries uint16 = 2 // CTA_STATS_GLOBAL_MAX_ENTRIES
)
