// Package manifest reads what kubectl apply reads, without an API server to judge it, for programs
// that take their services from files.
//
//	tracker := kube.NewTracker(kube.Config{Strict: true})
//	loader := manifest.NewLoader(tracker)
//	err := loader.ReadFile("services.yaml")
//	…
//	err = loader.Result().Err() // everything that is wrong with the objects
//	…
//	result, err := engine.Apply(ctx, tracker.State())
//
// What a loader does:
//
//	files ──split──► documents ──tree──► values ──decode──► objects ──defaults──► kube.Tracker
//
// A manifest is YAML or JSON text of any number of documents, separated by lines that begin with
// "---" (JSON values may also follow one another). Services, EndpointSlices, Endpoints, Nodes and
// ServiceCIDRs are taken, alone or in lists (kind List, ServiceList and so on); other kinds are
// counted and skipped. A kind that Kubernetes does not have in the API version given is an error,
// since it may be a misspelt one of these, and so is a file that is empty. Decoding is strict: a
// field that the kind does not have, a field given twice, a value of the wrong type are errors.
// What an API server would fill in is filled in; the cluster IP, which it would choose, is not: a
// Service without one is skipped with a warning. What is right and of no use to any service,
// [Loader.Unmatched] tells.
//
// Every problem names the file, the line, the document, the object and the field.
//
// # Limits
//
// Manifests come from people, and from who knows where. A file may have [MaxSize] bytes, a YAML
// document [MaxYAML] bytes (parsing takes some forty times the memory; JSON documents may be
// larger). Values may nest 1000 deep. YAML aliases may make a document a megabyte longer than it
// is. YAML merge keys (<<) and tags other than the standard ones are refused.
package manifest
