// Package manifest reads the files of kubectl apply without an API server, for programs whose
// services are in files.
//
//	tracker := kube.NewTracker(&kube.Config{Strict: true})
//	loader := manifest.NewLoader(tracker)
//	err := loader.ReadFile("services.yaml")
//	…
//	err = loader.Result().Err() // everything that is wrong with the objects
//	…
//	result, err := engine.Apply(ctx, tracker.State())
//
// To use a loader:
//
//	files ──split──► documents ──tree──► values ──decode──► objects ──defaults──► kube.Tracker
//
// A manifest is YAML or JSON text with any number of documents, separated by lines that begin with
// "---" (JSON values may also follow one another directly). The loader reads Services,
// EndpointSlices, Endpoints, Nodes and ServiceCIDRs, alone or in lists (kind List, ServiceList and
// so on). It counts and skips other kinds. A kind that Kubernetes does not have in the given API
// version is an error, because it may be a misspelling. A file without any object is also an error,
// unless [Loader].AllowEmpty is set. Decoding is strict: unknown fields, repeated fields and values
// of the wrong type are errors. The loader reports at most 100 problems of one object. It fills in
// the same defaults as an API server, except the cluster IP: a Service without a cluster IP is
// skipped with a warning. [Loader.Unmatched] returns valid objects that no service can use.
//
// Every problem names the file, the line, the document, the object and the field.
//
// # Limits
//
// Manifests may come from untrusted sources. A file may have [MaxSize] bytes, a YAML document 16
// MiB (parsing needs some forty times the memory; JSON documents may be larger). Values may be
// nested 1000 levels deep. YAML aliases may expand a document by at most a megabyte. YAML merge
// keys (<<) and non-standard tags are refused.
package manifest
