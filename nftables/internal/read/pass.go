package read

import (
	"context"
	"fmt"
)

// pass is one pass over the elements of a table that is read.
type pass struct {
	doing string
	do    func(context.Context, *Reading) error
}

// run makes passes one after another.
func (r *Reading) run(ctx context.Context, passes []pass) error {
	for _, s := range passes {
		if err := s.do(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", s.doing, err)
		}
	}

	return nil
}
