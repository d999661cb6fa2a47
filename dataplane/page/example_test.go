package page_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/page"
)

// A program mounts the page under one of its own paths.
func ExampleNew() {
	engine := dataplane.New(memory.New(nil), nil)
	p := page.New(engine, nil)
	defer p.Close()
	mux := http.NewServeMux()
	mux.Handle("/kernlb/", http.StripPrefix("/kernlb", page.Loopback(p)))
	// A program calls http.ListenAndServe("127.0.0.1:10249", mux).

	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/kernlb/", nil))
	_, title, _ := strings.Cut(w.Body.String(), "<title>")
	title, _, _ = strings.Cut(title, "</title>")
	fmt.Println(w.Code, title)
	// Output:
	// 200 Services · kernlb
}
