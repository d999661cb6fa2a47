package servicemodel_test

import (
	"testing"

	"github.com/kernlb/kernlb/internal/test/counts"
)

func TestCounts(t *testing.T) { counts.Model(t) }
