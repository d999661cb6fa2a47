package counts

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A figure may grow by 2 %, and shrink by 5 %. Each column counts.
func TestAChangedFigureFails(t *testing.T) {
	t.Parallel()
	for _, c := range columns {
		for now, text := range map[float64]string{100: "", 102: "", 102.1: "grew by 2.1 %",
			200: "grew by 100.0 %", 95: "", 94: "shrank by 6.0 %", 0: "shrank by 100.0 %"} {
			known := Row{Cost: Cost{1000, 1000, 1000, 1000, 1000, 1000}}
			is := known.Cost
			*c.of(&known.Cost), *c.of(&is) = 100, now
			if err := known.exceeded(is); text == "" {
				require.NoError(t, err, "%s: %f", c.name, now)
			} else {
				require.ErrorContains(t, err, c.name+" "+text)
			}
		}
	}

	require.Error(t, Row{}.exceeded(Cost{Messages: 1}), "there were none")
}

// The file of costs can be read and written again. Rows of other groups stay.
func TestTheFileIsWrittenByGroups(t *testing.T) {
	t.Parallel()
	a := Row{"a: one, two", Cost{1, 2000, 3, 4, 5, 6.5}}
	b, fewer := Row{"b: x", Cost{1, 2, 3, 4, 5, 6}}, Row{"a: other", Cost{7, 0, 0, 0, 0, 0}}
	text := written("go1.26", replaced([]Row{b}, "a", []Row{a}))
	require.Equal(t, []Row{a, b}, parse(t, text))
	require.Equal(t, []Row{fewer, b}, replaced(parse(t, text), "a", []Row{fewer}))
}

// Each element of a set is an object, and so is each other message, except messages of netlink
// itself.
func TestObjectsOfAnswers(t *testing.T) {
	t.Parallel()
	family := []byte{2, 0, 0, 0}                                       // struct nfgenmsg
	table := []byte{8, 0, 1, 0, 'a', 0, 0, 0}                          // NFTA_SET_ELEM_LIST_TABLE
	list := []byte{16, 0, 3, 0x80, 6, 0, 1, 0, 0, 0, 0, 0, 4, 0, 1, 0} // two elements
	body := append(append(family, table...), list...)
	require.Equal(t, 2, objects(newElements, body))
	require.Equal(t, 1, objects(newElements+1, body))
	require.Zero(t, objects(2, body), "NLMSG_ERROR")
	require.Zero(t, objects(newElements, body[:14]), "a cut message")
}
