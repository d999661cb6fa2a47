package iptables

// ruleEdit is one step that turns the rules of a chain into others. Steps come in the order of the
// chain.
type ruleEdit struct {
	kind editKind
	// at is the index of the rule that is kept, replaced or deleted, or before which a rule is
	// inserted (at the end, if the index is past it).
	at int
	// rule is the index of the new rule among the rules after.
	rule int
}

type editKind uint8

const (
	editKeep editKind = iota
	editInsert
	editReplace
	editDelete
)

// maxCompared bounds the work of comparing two long chains.
const maxCompared = 1 << 20

// editsBetween returns the shortest list of steps from one list of rules to another.
func editsBetween(before, after []rule) (l []ruleEdit) {
	at, next := 0, 0
	for _, k := range append(kept(before, after), pair{len(before), len(after)}) {
		for ; at < k.before && next < k.after; at, next = at+1, next+1 {
			l = append(l, ruleEdit{editReplace, at, next})
		}
		for ; next < k.after; next++ {
			l = append(l, ruleEdit{editInsert, at, next})
		}
		for ; at < k.before; at++ {
			l = append(l, ruleEdit{editDelete, at, next})
		}
		if at < len(before) {
			l = append(l, ruleEdit{editKeep, at, next})
			at, next = at+1, next+1
		}
	}
	return l
}

// pair holds the indices of a rule in both lists.
type pair struct{ before, after int }

// kept returns a longest common subsequence of two lists.
func kept(a, b []rule) (l []pair) {
	head, tail, shorter := 0, 0, min(len(a), len(b))
	for head < shorter && a[head].same(&b[head]) {
		l = append(l, pair{head, head})
		head++
	}
	for tail < shorter-head && a[len(a)-1-tail].same(&b[len(b)-1-tail]) {
		tail++
	}
	before, after := a[head:len(a)-tail], b[head:len(b)-tail]
	if len(before)*len(after) <= maxCompared {
		// longest[i][j] is the length of the longest common subsequence of before[i:] and
		// after[j:].
		longest := make([][]int32, len(before)+1)
		longest[len(before)] = make([]int32, len(after)+1)
		for i := len(before) - 1; i >= 0; i-- {
			longest[i] = make([]int32, len(after)+1)
			for j := len(after) - 1; j >= 0; j-- {
				longest[i][j] = max(longest[i+1][j], longest[i][j+1])
				if before[i].same(&after[j]) {
					longest[i][j] = longest[i+1][j+1] + 1
				}
			}
		}
		for i, j := 0, 0; i < len(before) && j < len(after); {
			switch {
			case before[i].same(&after[j]):
				l = append(l, pair{head + i, head + j})
				i, j = i+1, j+1
			case longest[i+1][j] >= longest[i][j+1]:
				i++
			default:
				j++
			}
		}
	}
	for ; tail > 0; tail-- {
		l = append(l, pair{len(a) - tail, len(b) - tail})
	}
	return l
}
