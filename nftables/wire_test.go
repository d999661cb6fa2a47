package nftables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/nftables/internal/form"
	"github.com/kernlb/kernlb/nftables/internal/read"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestSettingsRoundTrip(t *testing.T) {
	t.Parallel()
	for _, tc := range programCases {
		got := ok(rendering.ParseSettings(form.LayoutNumber,
			rendering.Settings(form.LayoutNumber, tc.rules)))(t)
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
	programPlan(&programCases[1].shape, programCases[1].rules).Encode(&b)
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
			r := read.NewReading(fam, defaultTable)
			r.Exists = true
			rules := programCases[0].rules
			s := form.Shape{Uses: form.SplitPools | form.LargePools}
			for _, st := range form.SetsOf(fam, &s) {
				r.Specs[st.Name] = st.Spec()
				for _, e := range l {
					r.Add(st.Name, e)
				}
			}

			for _, c := range newProgram(fam, rules, &s) {
				r.Chains[c.Name] = c.Chain
			}
			r.Elems[form.SetSettings] = nil
			r.Add(form.SetSettings, nft.Elem{Key: nft.Native32(1),
				UserData: nft.AppendComment(nil, "masquerade-mark 0x4000")})
			r.Recognize(r.Program())
			r.Interpret(&servicemodel.Contents{})
			for name, list := range r.Drift {
				require.NotEmpty(t, name)
				require.NoError(t, nft.DecodeElems(list.Bytes(), func(nft.Elem) error {
					return nil
				}))
			}
		}
	})
}
