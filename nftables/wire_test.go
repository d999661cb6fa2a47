package nftables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestSettingsRoundTrip(t *testing.T) {
	t.Parallel()
	for _, tc := range programCases {
		got := ok(rendering.ParseSettings(layoutNumber,
			rendering.Settings(layoutNumber, tc.rules)))(t)
		require.True(t, tc.rules.Equal(got), "%+v", got)
	}
}

// Decoding any answer of the kernel succeeds or returns an error. It never panics.
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
			r := newReading(fam, defaultTable)
			r.exists = true
			rules := programCases[0].rules
			s := shape{uses: splitPools | largePools}
			for _, st := range setsOf(fam, &s) {
				r.specs[st.Name] = st.Spec()
				for _, e := range l {
					r.add(st.Name, e)
				}
			}
			for _, c := range newProgram(fam, rules, &s) {
				r.chains[c.Name] = c.Chain
			}
			r.elems[setSettings] = nil
			r.add(setSettings, nft.Elem{Key: nft.Native32(1),
				UserData: nft.AppendComment(nil, "masquerade-mark 0x4000")})
			r.recognize(r.program())
			r.interpret(&servicemodel.Contents{})
			for name, list := range r.drift {
				require.NotEmpty(t, name)
				require.NoError(t, nft.DecodeElems(list.Bytes(), func(nft.Elem) error {
					return nil
				}))
			}
		}
	})
}
