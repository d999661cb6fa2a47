package main

// reason says why a peer differs, in the words of dataplane/dataplanetest/behaviour.md; "" if that is not known. lines are all packets of
// one kind of difference.
func reason(string, []string) string { return "" }
