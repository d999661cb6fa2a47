package pmap

import (
	"cmp"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// counted is a key that counts its comparisons.
type counted struct {
	n     int
	calls *int
}

func (k counted) Compare(o counted) int {
	if k.calls != nil {
		*k.calls++
	}
	return cmp.Compare(k.n, o.n)
}

type byNumber struct{}

func (byNumber) Hash(k counted) uint64 { return Hash(k.n) }

// clash hashes all keys alike, which must only cost time.
type clash struct{}

func (clash) Hash(counted) uint64 { return 7 }

type numbers = Map[counted, int, byNumber]

func newRand(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed: %#x", seed)
		}
	})

	return rand.New(rand.NewPCG(seed, 2))
}

func key(n int) counted { return counted{n: n} }

// content returns the contents of a map, in the map's order.
func content[O Hasher[counted]](m Map[counted, int, O]) (keys, values []int) {
	for k, v := range m.All() {
		keys, values = append(keys, k.n), append(values, v)
	}
	return keys, values
}

// check compares everything visible of a map with a model.
func check[O Hasher[counted]](t *testing.T, m Map[counted, int, O], model map[int]int) {
	t.Helper()
	want := slices.Sorted(maps.Keys(model))
	keys, values := content(m)
	require.Equal(t, want, keys)
	require.Equal(t, len(model), m.Len())
	for i, k := range keys {
		require.Equal(t, model[k], values[i])
		v, ok := m.Get(key(k))
		require.True(t, ok)
		require.Equal(t, model[k], v)
	}
}

func testAgainstModel[O Hasher[counted]](t *testing.T) {
	r := newRand(t)
	for range 40 {
		var m Map[counted, int, O]
		model := map[int]int{}
		span := 1 + r.IntN(60)
		for i := range 120 {
			k := r.IntN(span)
			before, old := m, maps.Clone(model)
			if r.IntN(3) == 0 {
				m = m.Delete(key(k))
				delete(model, k)
			} else {
				m = m.Set(key(k), i)
				model[k] = i
			}

			if i%20 == 0 {
				check(t, m, model)
				check(t, before, old) // the earlier map is unchanged
			}
		}

		from, to := r.IntN(span), r.IntN(2*span)
		var got []int
		for k := range m.From(key(from), func(k counted) bool { return k.n < to }) {
			got = append(got, k.n)
		}
		want := slices.DeleteFunc(slices.Sorted(maps.Keys(model)), func(k int) bool {
			return k < from || k >= to
		})
		require.ElementsMatch(t, want, got)
		require.True(t, slices.IsSorted(got))
	}
}

func TestMapBehavesLikeASortedMap(t *testing.T) {
	t.Parallel()
	t.Run("with good hashes", testAgainstModel[byNumber])
	t.Run("with equal hashes", testAgainstModel[clash])
}

func TestEmptyMap(t *testing.T) {
	t.Parallel()
	var m numbers
	require.Zero(t, m.Len())
	_, ok := m.Get(key(1))
	require.False(t, ok)
	require.True(t, m.Delete(key(1)).Same(m))
	for range m.All() {
		t.Fatal("an entry")
	}
	for range m.From(key(0), all) {
		t.Fatal("an entry")
	}
}

// all is the range of all keys.
func all(counted) bool { return true }

func TestDeletingWhatIsNotThereReturnsTheMapItself(t *testing.T) {
	t.Parallel()
	m := numbers{}.Set(key(1), 1).Set(key(3), 3)
	require.True(t, m.Delete(key(2)).Same(m))
	require.False(t, m.Delete(key(1)).Same(m))
}

func TestIterationStopsWhenAsked(t *testing.T) {
	t.Parallel()
	var m numbers
	for i := range 50 {
		m = m.Set(key(i), i)
	}
	for stop := range 50 {
		seen := 0
		for k := range m.All() {
			seen++
			if k.n == stop {
				break
			}
		}

		require.Equal(t, stop+1, seen)
		for k := range m.From(key(stop), all) {
			require.Equal(t, stop, k.n)
			break
		}

		for c := range Diff(numbers{}, m, func(a, b int) bool { return a == b }) {
			if c.Key.n == stop {
				break
			}
		}
	}
}

// shape writes down a tree with its keys and structure.
func shape[K Key[K], V any](n *node[K, V], to []any) []any {
	if n == nil {
		return append(to, nil)
	}
	return shape(n.right, shape(n.left, append(to, n.key)))
}

func testShape[O Hasher[counted]](t *testing.T) {
	r := newRand(t)
	for range 30 {
		keys := r.Perm(1 + r.IntN(80))
		var a, b Map[counted, int, O]
		for _, k := range keys {
			a = a.Set(key(k), k)
		}
		for _, k := range r.Perm(2 * len(keys)) {
			b = b.Set(key(k), k)
		}
		for _, k := range r.Perm(2 * len(keys)) {
			if k >= len(keys) {
				b = b.Delete(key(k))
			}
		}

		var build Builder[counted, int, O]
		for k := range len(keys) {
			require.True(t, build.Append(key(k), k))
		}
		want := shape(a.root, nil)
		require.Equal(t, want, shape(b.root, nil))
		built := build.Map()
		require.Equal(t, want, shape(built.root, nil))
		require.Equal(t, a.Len(), built.Len())
		require.Zero(t, build.Map().Len(), "the builder starts anew")
	}
}

func TestShapeDependsOnKeysAlone(t *testing.T) {
	t.Parallel()
	t.Run("with good hashes", testShape[byNumber])
	t.Run("with equal hashes", testShape[clash])
}

func TestBuilderRefusesKeysOutOfOrder(t *testing.T) {
	t.Parallel()
	var b Builder[counted, int, byNumber]
	require.True(t, b.Append(key(2), 20))
	require.False(t, b.Append(key(2), 21))
	require.False(t, b.Append(key(1), 10))
	require.True(t, b.Append(key(3), 30))
	keys, values := content(b.Map())
	require.Equal(t, []int{2, 3}, keys)
	require.Equal(t, []int{20, 30}, values)
}

func testDiff[O Hasher[counted]](t *testing.T) {
	r := newRand(t)
	for range 60 {
		var a, b Map[counted, int, O]
		inA, inB := map[int]int{}, map[int]int{}
		for range r.IntN(60) {
			k := r.IntN(40)
			a, inA[k] = a.Set(key(k), k), k
		}

		if r.IntN(2) == 0 {
			b, inB = a, maps.Clone(inA)
		}
		for i := range r.IntN(20) {
			k := r.IntN(40)
			if r.IntN(2) == 0 {
				b, inB[k] = b.Set(key(k), k+i%2), k+i%2
			} else {
				b = b.Delete(key(k))
				delete(inB, k)
			}
		}

		var want, got []Change[counted, int]
		for k := range 40 {
			c := Change[counted, int]{Key: key(k)}
			c.Old, c.InOld = inA[k]
			c.New, c.InNew = inB[k]
			if c.InOld != c.InNew || c.Old != c.New {
				want = append(want, c)
			}
		}

		for c := range Diff(a, b, func(x, y int) bool { return x == y }) {
			got = append(got, c)
		}
		require.Equal(t, want, got)
		check(t, a, inA)
		check(t, b, inB)
	}
}

func TestDiffYieldsWhatDiffersInOrder(t *testing.T) {
	t.Parallel()
	t.Run("with good hashes", testDiff[byNumber])
	t.Run("with equal hashes", testDiff[clash])
}

func TestDiffCostsWhatChanged(t *testing.T) {
	t.Parallel()
	const size = 1 << 15
	var calls int
	var build Builder[counted, int, byNumber]
	for i := range size {
		build.Append(counted{2 * i, &calls}, i)
	}
	a := build.Map()
	r := newRand(t)
	for _, changes := range []int{0, 1, 2, 10, 100} {
		b := a
		for i := range changes {
			k := counted{r.IntN(2 * size), &calls} // half of them are new keys
			if i%2 == 0 {
				b = b.Set(k, -1)
			} else {
				b = b.Delete(k)
			}
		}

		calls = 0
		found := 0
		for range Diff(a, b, func(x, y int) bool { return x == y }) {
			found++
		}
		require.LessOrEqual(t, found, changes)
		require.LessOrEqual(t, calls, changes*8*bits.Len(size), "%d changes", changes)
	}
}

func TestTreeIsShallow(t *testing.T) {
	t.Parallel()
	var m numbers
	for i := range 1 << 14 {
		m = m.Set(key(i), i)
	}
	require.Less(t, depth(m.root), 60, "about 2.2 times the logarithm is expected, 31 at best")
}

func depth[K Key[K], V any](n *node[K, V]) int {
	if n == nil {
		return 0
	}
	return 1 + max(depth(n.left), depth(n.right))
}

func BenchmarkSet(b *testing.B) {
	var m numbers
	for i := range 50000 {
		m = m.Set(key(i*2), i)
	}
	i := 0
	for b.Loop() {
		i++
		m = m.Set(key(i*7919%100000), i)
	}
}

func BenchmarkGet(b *testing.B) {
	var m numbers
	for i := range 50000 {
		m = m.Set(key(i), i)
	}
	i := 0
	for b.Loop() {
		i++
		m.Get(key(i * 7919 % 50000))
	}
}
