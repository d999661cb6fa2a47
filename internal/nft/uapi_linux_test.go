package nft

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// numbers are those that golang.org/x/sys/unix has, too.
var numbers = []struct {
	what      string
	got, want int
}{
	{"messages", MsgDelSetElem, unix.NFT_MSG_DELSETELEM},
	{"messages", MsgGetRule, unix.NFT_MSG_GETRULE},
	{"table", attrTableUse, unix.NFTA_TABLE_USE},
	{"chain", AttrChainName, unix.NFTA_CHAIN_NAME},
	{"chain", attrChainType, unix.NFTA_CHAIN_TYPE},
	{"hook", attrHookPriority, unix.NFTA_HOOK_PRIORITY},
	{"hooks", HookPostrouting, unix.NF_INET_POST_ROUTING},
	{"rule", attrRuleUserData, unix.NFTA_RULE_USERDATA},
	{"rule compat", attrCompatFlags, unix.NFTA_RULE_COMPAT_FLAGS},
	{"set", attrSetDesc, unix.NFTA_SET_DESC},
	{"set", attrSetID, unix.NFTA_SET_ID},
	{"set", attrSetUserData, unix.NFTA_SET_USERDATA},
	{"set desc", attrDescSize, unix.NFTA_SET_DESC_SIZE},
	{"set flags", setAnonymous | setConstant, unix.NFT_SET_ANONYMOUS | unix.NFT_SET_CONSTANT},
	{"set flags", SetInterval, unix.NFT_SET_INTERVAL},
	{"set flags", SetMap, unix.NFT_SET_MAP},
	{"set flags", SetTimeout, unix.NFT_SET_TIMEOUT},
	{"set flags", SetEval, unix.NFT_SET_EVAL},
	{"data type", dataTypeVerdict, unix.NFT_DATA_VERDICT},
	{"elements", attrElemsSetID, unix.NFTA_SET_ELEM_LIST_SET_ID},
	{"element", elemUserData, unix.NFTA_SET_ELEM_USERDATA},
	{"element", elemExpiration, unix.NFTA_SET_ELEM_EXPIRATION},
	{"list", listElem, unix.NFTA_LIST_ELEM},
	{"data", DataVerdict, unix.NFTA_DATA_VERDICT},
	{"verdict", AttrVerdictChain, unix.NFTA_VERDICT_CHAIN},
	{"verdicts", VerdictReturn, unix.NFT_RETURN},
	{"verdicts", VerdictGoto, unix.NFT_GOTO},
	{"verdicts", VerdictJump, unix.NFT_JUMP},
	{"registers", RegVerdict, unix.NFT_REG_VERDICT},
	{"registers", Reg1, unix.NFT_REG_1},
	{"registers", reg32_00, unix.NFT_REG32_00},
	{"expression", exprData, unix.NFTA_EXPR_DATA},
	{"payload", AttrPayloadLen, unix.NFTA_PAYLOAD_LEN},
	{"payload", NetworkHeader, unix.NFT_PAYLOAD_NETWORK_HEADER},
	{"payload", TransportHeader, unix.NFT_PAYLOAD_TRANSPORT_HEADER},
	{"meta", attrMetaSReg, unix.NFTA_META_SREG},
	{"meta", MetaMark, unix.NFT_META_MARK},
	{"meta", MetaIIFName, unix.NFT_META_IIFNAME},
	{"meta", MetaL4Proto, unix.NFT_META_L4PROTO},
	{"ct", attrCTDirection, unix.NFTA_CT_DIRECTION},
	{"ct", ctState, unix.NFT_CT_STATE},
	{"ct", ctDirection, unix.NFT_CT_DIRECTION},
	{"ct", ctStatus, unix.NFT_CT_STATUS},
	{"ct", ctProtocol, unix.NFT_CT_PROTOCOL},
	{"ct", ctProtoDst, unix.NFT_CT_PROTO_DST},
	{"ct", ctSrcIP, unix.NFT_CT_SRC_IP},
	{"ct", ctDstIP, unix.NFT_CT_DST_IP},
	{"ct", ctSrcIP6, unix.NFT_CT_SRC_IP6},
	{"ct", ctDstIP6, unix.NFT_CT_DST_IP6},
	{"cmp", AttrCmpData, unix.NFTA_CMP_DATA},
	{"cmp", CmpNeq, unix.NFT_CMP_NEQ},
	{"cmp", CmpLte, unix.NFT_CMP_LTE},
	{"cmp", CmpGte, unix.NFT_CMP_GTE},
	{"bitwise", AttrBitwiseXor, unix.NFTA_BITWISE_XOR},
	{"range", AttrRangeTo, unix.NFTA_RANGE_TO_DATA},
	{"range", RangeEq, unix.NFT_RANGE_EQ},
	{"lookup", attrLookupFlags, unix.NFTA_LOOKUP_FLAGS},
	{"lookup", lookupInvert, unix.NFT_LOOKUP_F_INV},
	{"immediate", AttrImmediateData, unix.NFTA_IMMEDIATE_DATA},
	{"counter", attrCounterPackets, unix.NFTA_COUNTER_PACKETS},
	{"match", AttrExtensionInfo, unix.NFTA_MATCH_INFO},
	{"target", AttrExtensionInfo, unix.NFTA_TARGET_INFO},
	{"hash", attrHashType, unix.NFTA_HASH_TYPE},
	{"hash", hashJenkins, unix.NFT_HASH_JENKINS},
	{"numgen", attrNumgenOffset, unix.NFTA_NG_OFFSET},
	{"numgen", numgenRandom, unix.NFT_NG_RANDOM},
	{"nat", attrNATRegAddrMin, unix.NFTA_NAT_REG_ADDR_MIN},
	{"nat", attrNATRegProtoMin, unix.NFTA_NAT_REG_PROTO_MIN},
	{"nat", natDNAT, unix.NFT_NAT_DNAT},
	{"masq", attrMasqFlags, unix.NFTA_MASQ_FLAGS},
	{"masq", natFullyRandom, unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY},
	{"reject", attrRejectCode, unix.NFTA_REJECT_ICMP_CODE},
	{"reject", rejectTCPReset, unix.NFT_REJECT_TCP_RST},
	{"fib", attrFIBFlags, unix.NFTA_FIB_FLAGS},
	{"fib", fibSaddr, unix.NFTA_FIB_F_SADDR},
	{"fib", fibDaddr, unix.NFTA_FIB_F_DADDR},
	{"fib", fibAddrType, unix.NFT_FIB_RESULT_ADDRTYPE},
	{"fib", rtnLocal, unix.RTN_LOCAL},
	{"dynset", attrDynsetTimeout, unix.NFTA_DYNSET_TIMEOUT},
	{"dynset", dynsetUpdate, unix.NFT_DYNSET_OP_UPDATE},
	{"families", int(IPv4.NFProto), unix.NFPROTO_IPV4},
	{"families", int(IPv6.NFProto), unix.NFPROTO_IPV6},
	{"interface", interfaceNameLen, unix.IFNAMSIZ},
}

func TestNumbersAreTheKernels(t *testing.T) {
	t.Parallel()
	for _, n := range numbers {
		require.Equal(t, n.want, n.got, n.what)
	}
}
