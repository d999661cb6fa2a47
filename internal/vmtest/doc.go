// Package vmtest runs programs.
package vmtest
