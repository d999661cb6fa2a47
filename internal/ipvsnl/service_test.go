package ipvsnl

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/rawnl"
)

// servicesAsBytes are services and the attributes that the kernel gets of them.
var servicesAsBytes = []struct {
	name    string
	service Service
	want    string
}{
	{
		name:    "TCP over IPv4",
		service: Wanted(Web),
		want: `
				5400 0180                             // IPVS_CMD_ATTR_SERVICE
				0600 0100 0200 0000                   // AF: AF_INET
				0600 0200 0600 0000                   // PROTOCOL: IPPROTO_TCP
				1400 0300 0a600001 000000000000000000000000 // ADDR
				0600 0400 0050 0000                   // PORT, network order
				0700 0600 727200 00                   // SCHED_NAME
				0c00 0700 00000000 ffffffff           // FLAGS, and which of them
				0800 0800 00000000                    // TIMEOUT
				0800 0900 ffffffff                    // NETMASK, network order
			`,
	},
	{
		name: "persistent UDP over IPv6",
		service: Service{ServiceKey: DNS6, Scheduler: "wlc", Flags: FlagPersistent |
			FlagOnePacket, Timeout: 5 * time.Minute,
			Netmask: Mask(FamilyIPv6, 64)},
		want: `
				5400 0180
				0600 0100 0a00 0000                   // AF_INET6
				0600 0200 1100 0000                   // IPPROTO_UDP
				1400 0300 20010db8000000000000000000000001
				0600 0400 0035 0000
				0800 0600 776c6300
				0c00 0700 05000000 ffffffff
				0800 0800 2c010000
				0800 0900 40000000                    // a prefix length, machine order
			`,
	},
	{
		name: "a firewall mark with a persistence engine",
		service: Service{ServiceKey: Marks, Scheduler: "sh", Flags: FlagHashPort,
			Netmask:           Mask(FamilyIPv4, 24),
			PersistenceEngine: "sip"},
		want: `
				4000 0180
				0600 0100 0200 0000
				0800 0500 07000000                    // FWMARK, instead of protocol and address
				0700 0600 736800 00
				0800 0b00 73697000                    // PE_NAME
				0c00 0700 10000000 ffffffff
				0800 0800 00000000
				0800 0900 ffffff00
			`,
	},
}

func TestServicesHaveTheKernelsBytes(t *testing.T) {
	t.Parallel()
	LittleEndian(t)
	for _, tt := range servicesAsBytes {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, tt.service.Validate())
			require.Equal(t, Unhex(t, tt.want), ServiceAttr(tt.service))
		})
	}
}

func TestAServiceKeyHasOnlyWhatNamesTheService(t *testing.T) {
	t.Parallel()
	LittleEndian(t)
	require.Equal(t, Unhex(t, `
		3000 0180
		0600 0100 0200 0000
		0600 0200 0600 0000
		1400 0300 0a600001 000000000000000000000000
		0600 0400 0050 0000
	`), KeyAttr(Web))
	require.Equal(t, Unhex(t, "1400 0180 0600 0100 0200 0000 0800 0500 07000000"),
		KeyAttr(Marks))
}

// with returns a valid service, changed.
func with(change func(s *Service)) Service {
	s := Wanted(Web)
	change(&s)
	return s
}

// impossibleServices are services that IPVS cannot have, and what is wrong with them.
var impossibleServices = []struct {
	name    string
	service Service
	want    string
}{
	{"nothing at all", Service{}, "family: invalid: family 0 is neither IPv4 nor IPv6"},
	{"no address", with(func(s *Service) {
		s.Addr = netip.Addr{}
	}), "address: invalid: missing"},
	{"an address of the other family", with(func(s *Service) { s.Addr = DNS6.Addr }),
		"address: invalid: 2001:db8::1 is not of the family IPv4"},
	{"a mapped address", with(func(s *Service) {
		s.Family, s.Addr = FamilyIPv6, netip.MustParseAddr("::ffff:10.0.0.1")
	}), "is mapped into IPv6"},
	{"an address with a zone", with(func(s *Service) {
		s.Family, s.Addr = FamilyIPv6, netip.MustParseAddr("fe80::1%eth0")
	}), "has a zone"},
	{"the unspecified address", with(func(s *Service) {
		s.Addr = netip.IPv4Unspecified()
	}), "no unicast address"},
	{"a multicast address", with(func(s *Service) {
		s.Addr = netip.MustParseAddr("224.0.0.1")
	}), "no unicast address"},
	{"another protocol", with(func(s *Service) {
		s.Protocol = 50
	}), "protocol: invalid: protocol 50 is not TCP"},
	{"a mark and an address", with(func(s *Service) {
		s.FWMark = 1
	}), "firewall mark: invalid"},
	{"port 0 without persistence", with(func(s *Service) {
		s.Port = 0
	}), "port: invalid: 0 needs the flag persistent"},
	{"no scheduler", with(func(s *Service) {
		s.Scheduler = ""
	}), "scheduler: invalid: missing"},
	{"a scheduler with a long name", with(func(s *Service) {
		s.Scheduler = "abcdefghijklmnop"
	}), "at most 15 characters"},
	{"a scheduler that is no name", with(func(s *Service) {
		s.Scheduler = "r r"
	}), "scheduler: invalid: \"r r\""},
	{"an engine with a NUL", with(func(s *Service) {
		s.PersistenceEngine = "s\x00"
	}), "persistence engine: invalid"},
	{"the kernel's own flag", with(func(s *Service) {
		s.Flags = FlagHashed
	}), "flags: invalid: hashed belongs to the kernel"},
	{"a negative timeout", with(func(s *Service) {
		s.Timeout = -time.Second
	}), "timeout: invalid: -1s is negative"},
	{"a part of a second", with(func(s *Service) {
		s.Timeout = 1500 * time.Millisecond
	}), "whole number of seconds"},
	{"a timeout that would overflow", with(func(s *Service) {
		s.Timeout = MaxPersistence + time.Second
	}), "is more than"},
	{"an IPv4 netmask on IPv6", with(func(s *Service) {
		s.ServiceKey, s.Netmask = DNS6, Mask(FamilyIPv4, 8)
	}), "netmask: invalid: not one of IPv6"},
}

func TestServicesThatIPVSCannotHaveAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range impossibleServices {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := tt.service.Validate()
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, tt.want)
		})
	}
	require.NoError(t, with(func(s *Service) { s.Port, s.Flags = 0, FlagPersistent }).Validate())
	require.NoError(t, with(func(s *Service) { s.Scheduler = "none" }).Validate())
}

func TestServiceKeys(t *testing.T) {
	t.Parallel()
	require.Equal(t, "TCP 10.96.0.1:80", Web.String())
	require.Equal(t, "UDP [2001:db8::1]:53", DNS6.String())
	require.Equal(t, "FWM 7 IPv4", Marks.String())
	require.Equal(t, Web, AddressService(TCP, netip.MustParseAddrPort("[::ffff:10.96.0.1]:80")))

	sorted := []ServiceKey{
		AddressService(TCP, netip.MustParseAddrPort("9.255.0.1:80")),
		Web,
		AddressService(UDP, netip.MustParseAddrPort("10.96.0.1:80")),
		AddressService(TCP, netip.MustParseAddrPort("10.96.0.1:443")),
		DNS6,
		MarkService(FamilyIPv4, 7),
		MarkService(FamilyIPv6, 7),
		MarkService(FamilyIPv4, 8),
	}
	shuffled := slices.Clone(sorted)
	Random(t).Shuffle(len(shuffled), func(i, j int) {
		shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
	})
	slices.SortFunc(shuffled, ServiceKey.Compare)
	require.Equal(t, sorted, shuffled)
}

// KeyAttr returns k as a request about something that exists has it.
func KeyAttr(k ServiceKey) []byte {
	return Attrs(func(b *rawnl.Batch) { putServiceKey(b, k) })
}

// ServiceAttr returns s as a request has it, with more attributes.
func ServiceAttr(s Service, more ...func(b *rawnl.Batch)) []byte {
	return Inside(CmdAttrService, func(b *rawnl.Batch) {
		PutService(b, s)
		for _, put := range more {
			put(b)
		}
	})
}

func TestServicesThatTheKernelWouldNotSendAreRefused(t *testing.T) {
	t.Parallel()
	LittleEndian(t)
	for _, tt := range []struct {
		name string
		data []byte
		want string
	}{
		{"nothing", nil, "neither a mark nor"},
		{"an empty service", Unhex(t, "0400 0180"), "neither a mark nor"},
		{"a service without settings", KeyAttr(Web),
			"service TCP 10.96.0.1:80: not all attributes"},
		{"a service with half an address",
			Unhex(t, "2800 0180 0600 0100 0200 0000 0600 0200 0600 0000"+
				"0600 0300 0a00 0000 0600 0400 0050 0000 0400 ff00"),
			"an address of IPv4 has 2 bytes"},
		{"an attribute that is cut off", Inside(CmdAttrService, func(b *rawnl.Batch) {
			b.Raw([]byte{9, 0, 1, 0})
		}), "claims 9 bytes"},
		{"an IPv6 prefix that is too long", ServiceAttr(Wanted(DNS6), func(b *rawnl.Batch) {
			b.NativeU32(SvcAttrNetmask, 129)
		}), "an IPv6 prefix length of 129"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := parseServiceReply(tt.data)
			require.ErrorIs(t, err, rawnl.ErrMalformed)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestUnknownAttributesOfAServiceAreIgnored(t *testing.T) {
	t.Parallel()
	want := Wanted(Web)
	want.Flags |= FlagHashed
	data := ServiceAttr(want, func(b *rawnl.Batch) { b.NativeU64(99, 1) })
	got, err := parseServiceReply(append(data, Attrs(func(b *rawnl.Batch) { b.U32(77, 1) })...))
	require.NoError(t, err)
	require.Equal(t, ObservedService{Service: Wanted(Web), Hashed: true}, got)
}
