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
func editsBetween(before, after []rule) []ruleEdit {
	head := 0
	for head < len(before) && head < len(after) && before[head].same(&after[head]) {
		head++
	}
	tail := 0
	for tail < len(before)-head && tail < len(after)-head && before[len(before)-1-tail].same(
		&after[len(after)-1-tail]) {
		tail++
	}
	var l []ruleEdit
	for i := range head {
		l = append(l, ruleEdit{editKeep, i, i})
	}
	i, j, iEnd, jEnd := head, head, len(before)-tail, len(after)-tail
	for _, k := range common(before[head:iEnd], after[head:jEnd]) {
		l = appendGap(l, i, head+k.before, j, head+k.after)
		i, j = head+k.before, head+k.after
		l = append(l, ruleEdit{editKeep, i, j})
		i, j = i+1, j+1
	}
	l = appendGap(l, i, iEnd, j, jEnd)
	for i := range tail {
		l = append(l, ruleEdit{editKeep, iEnd + i, jEnd + i})
	}
	return l
}

// appendGap appends the steps that turn the rules from i to iEnd into those from j to jEnd. The two
// ranges have no rule in common.
func appendGap(l []ruleEdit, i, iEnd, j, jEnd int) []ruleEdit {
	for ; i < iEnd && j < jEnd; i, j = i+1, j+1 {
		l = append(l, ruleEdit{editReplace, i, j})
	}
	for ; j < jEnd; j++ {
		l = append(l, ruleEdit{editInsert, i, j})
	}
	for ; i < iEnd; i++ {
		l = append(l, ruleEdit{editDelete, i, j})
	}
	return l
}

// pair holds the indices of a rule in both lists.
type pair struct{ before, after int }

// common returns a longest common subsequence.
func common(a, b []rule) []pair {
	if len(a)*len(b) > maxCompared {
		return nil
	}
	// longest[i][j] is the length of the longest common subsequence of a[i:] and b[j:].
	width := len(b) + 1
	longest := make([]int32, (len(a)+1)*width)
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i].same(&b[j]) {
				longest[i*width+j] = longest[(i+1)*width+j+1] + 1
			} else {
				longest[i*width+j] = max(longest[(i+1)*width+j], longest[i*width+j+1])
			}
		}
	}
	var l []pair
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case a[i].same(&b[j]):
			l = append(l, pair{i, j})
			i, j = i+1, j+1
		case longest[(i+1)*width+j] >= longest[i*width+j+1]:
			i++
		default:
			j++
		}
	}
	return l
}
