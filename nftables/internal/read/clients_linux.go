package read

import (
	"bytes"
	"context"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
)

// Learnt reads the number of times that a client was remembered, from the counters of the chains
// that learn. If another program changes the rules, the next number differs, and the maps are read
// once more.
func (k *Reader) Learnt(ctx context.Context, f *nft.Family, table string) (n uint64,
	err error) {
	err = k.About(f, table).Rules(ctx, "", func(rule nft.RuleInfo) error {
		if !bytes.HasPrefix(rule.Chain, []byte(form.ChainLearn)) {
			return nil
		}
		packets, err := rule.Counted()
		n += packets
		return err
	})
	return n, err
}
