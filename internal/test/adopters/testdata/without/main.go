// Without is a program before the import: like the adopters, it can serve HTTPS.
package main

import (
	"fmt"
	"net/http"
	"os"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, http.ListenAndServeTLS(os.Args[1], "cert.pem", "key.pem", nil))
	}
}
