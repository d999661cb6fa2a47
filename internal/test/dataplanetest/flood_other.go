//go:build !linux

package dataplanetest

var floodStories []story
