package iptables

// ruleEdit is one step of turning the rules of a chain into others. Steps come in the order of the
// chain.
type ruleEdit struct {
	kind editKind
	// at is the place of the rule that is kept, replaced or deleted, or before which one is
	// inserted (at the end, if there is no such place).
	at int
	// rule is the place of the new rule among the rules after.
	rule int
}

type editKind uint8

const (
	editKeep editKind = iota
	editInsert
	editReplace
	editDelete
)

// maxCompared bounds the work of finding out which rules of two long chains correspond.
const maxCompared = 1 << 20

// editsBetween returns the steps from one list of rules to another, the fewest that do.
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
	l = appendMiddle(l, before[:len(before)-tail], after[:len(after)-tail], head)
	for i := range tail {
		l = append(l, ruleEdit{editKeep, len(before) - tail + i, len(after) - tail + i})
	}
	return l
}

// appendMiddle appends the steps for what lies between equal beginnings and endings.
func appendMiddle(l []ruleEdit, before, after []rule, head int) []ruleEdit {
	i, j := head, head
	for _, k := range common(before[head:], after[head:]) {
		l = appendGap(l, i, head+k.before, j, head+k.after)
		i, j = head+k.before, head+k.after
		l = append(l, ruleEdit{editKeep, i, j})
		i, j = i+1, j+1
	}
	return appendGap(l, i, len(before), j, len(after))
}

// appendGap appends the steps that turn the rules from i to iEnd into those from j to jEnd, which
// have nothing in common.
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

// pair are the places of a rule in both lists.
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
