package rawnl

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRefusalsAreFoundInAnError(t *testing.T) {
	t.Parallel()
	one := &OpError{Op: "add", Object: "x", Errno: syscall.EEXIST}
	two := &OpError{Op: "add", Object: "y", Errno: syscall.ENOENT}
	require.Nil(t, Refusals(nil))
	require.Nil(t, Refusals(ErrAnswersLost))
	require.Equal(t, OpErrors{one}, Refusals(fmt.Errorf("check: %w", one)))
	require.Equal(t, OpErrors{one, two}, Refusals(errors.Join(OpErrors{one, two}, ErrAnswersLost)))
}

func TestRefusalsCanBeLeftOut(t *testing.T) {
	t.Parallel()
	there := &OpError{Op: "add", Object: "x", Errno: syscall.EEXIST}
	missing := &OpError{Op: "add", Object: "y", Errno: syscall.ENOENT}
	lost := errors.Join(there, ErrAnswersLost)
	for _, tt := range []struct {
		name      string
		err, want error
	}{
		{"no error", nil, nil},
		{"another kind of error", ErrClosed, ErrClosed},
		{"the one", there, nil},
		{"all of them", OpErrors{there, there}, nil},
		{"another one", missing, missing},
		{"one of two", OpErrors{there, missing}, missing},
		{"two of three", OpErrors{missing, there, missing}, OpErrors{missing, missing}},
		{"answers are missing, too", lost, lost},
	} {
		require.Equal(t, tt.want, Except(tt.err, syscall.EEXIST), tt.name)
	}
}
