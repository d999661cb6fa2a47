package ipvsnl_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/ipvsfake"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

// dial returns a client that uses the socket.
func dial(tb testing.TB, sock rawnl.Socket) *Client {
	tb.Helper()
	c := ok(Dial(tb.Context(), &rawnl.Config{Socket: sock}))(tb)
	tb.Cleanup(func() { require.NoError(tb, c.Close()) })
	return c
}

// fakeClient returns a client of a new fake.
func fakeClient(tb testing.TB) (*Client, *ipvsfake.Kernel) {
	tb.Helper()
	k := ipvsfake.New()
	return dial(tb, k.Socket()), k
}

// dialScripted returns a client whose kernel knows the family and passes all other requests to
// answer.
func dialScripted(t *testing.T, answer func(m rawnltest.Message) []any) (*Client,
	*rawnltest.Kernel) {
	t.Helper()
	k := ipvsfake.New()
	sock := &rawnltest.Kernel{Answer: k.Answer}
	c := dial(t, sock)
	sock.Answer = func(request []rawnltest.Message) (answers []any) {
		for _, m := range request {
			answers = append(answers, answer(m)...)
		}
		return answers
	}
	return c, sock
}

// submit sends the commands that fill adds.
func submit(tb testing.TB, c *Client, fill func(b *Batch)) error {
	tb.Helper()
	var b Batch
	fill(&b)
	return c.Submit(tb.Context(), &b)
}

// servicesOf, serviceOf, destsOf and allDestsOf read objects that must exist.
func servicesOf(tb testing.TB, c *Client) []ObservedService {
	tb.Helper()
	return ok(c.Services(tb.Context()))(tb)
}

func serviceOf(tb testing.TB, c *Client, k ServiceKey) ObservedService {
	tb.Helper()
	return ok(c.Service(tb.Context(), k))(tb)
}

func destsOf(tb testing.TB, c *Client, k ServiceKey) []ObservedDestination {
	tb.Helper()
	return ok(c.Destinations(tb.Context(), k))(tb)
}

func allDestsOf(tb testing.TB, c *Client, keys []ServiceKey) [][]ObservedDestination {
	tb.Helper()
	l := make([][]ObservedDestination, len(keys))
	for i, k := range keys {
		l[i] = ok(c.DestinationsIf(tb.Context(), k))(tb)
	}
	return l
}
