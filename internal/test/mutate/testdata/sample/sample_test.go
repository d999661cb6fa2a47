package sample

import (
	"testing"
	"time"
)

func Test(t *testing.T) {
	if greater(1, 2) != 2 || greater(2, 1) != 2 {
		t.Error("greater")
	}
	for i := range 3 {
		if at, err := search([]int{0, 1, 2}, i); at != i || err != nil {
			t.Error(at, err)
		}
	}
	if at, err := search(nil, 1); at != -1 || err == nil {
		t.Error(at, err)
	}
	if wait(30) != 2*time.Second || wait(31) != 2*time.Second+1 {
		t.Error("wait")
	}
}
