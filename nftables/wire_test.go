package nftables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/settings"
)

func TestSettingsRoundTrip(t *testing.T) {
	t.Parallel()
	for _, tc := range programCases {
		got, err := settings.Parse(layoutNumber,
			settings.Lines(layoutNumber, tc.rules))
		require.NoError(t, err)
		require.True(t, tc.rules.Equal(got), "%+v", got)
	}
}

// Whatever the kernel says, decoding it is an error or not, and never a panic.
func FuzzDecode(f *testing.F) {
	var elems nft.ElemList
	elems.Add(nft.Elem{Key: []byte{10, 96, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0},
		UserData: nft.AppendComment(nil, "a/b cluster IP")})
	f.Add(elems.Bytes())
	var b rawnl.Batch
	programPlan(&programCases[1].shape, programCases[1].rules).encode(&b)
	f.Add(b.Bytes()[:2000])
	f.Fuzz(func(t *testing.T, data []byte) {
		var l []nft.Elem
		_ = nft.DecodeElems(data, func(e nft.Elem) error {
			l = append(l, e)
			return nil
		})
		if r, err := nft.DecodeRule(data); err == nil {
			_, _ = r.Counted()
		}
		_ = nft.CommentOf(data)
		for _, fam := range nft.Families {
			raw := newRawTable(DefaultTable)
			rules := programCases[0].rules
			s := shape{sizes: [2][2][]int{{{1}, nil}, {{1}, nil}}}
			for _, st := range setsOf(fam, &s) {
				raw.sets[st.Name] = st.Spec()
				for _, e := range l {
					raw.add(st.Name, e)
				}
			}
			for _, c := range newProgram(fam, rules, &s) {
				raw.chains[c.Name] = c.Chain
			}
			raw.elems[setSettings] = nil
			raw.add(setSettings, nft.Elem{Key: nft.Native32(1),
				UserData: nft.AppendComment(nil, "masquerade-mark 0x4000")})
			if o, err := read(fam, raw, func(*observed) error { return nil }); err == nil {
				for name, list := range o.drift {
					require.NotEmpty(t, name)
					require.NoError(t, nft.DecodeElems(list.Bytes(), func(nft.Elem) error {
						return nil
					}))
				}
			}
		}
	})
}
