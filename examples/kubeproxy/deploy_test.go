package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	yamlv3 "go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/kernlb/kernlb/internal/test/must"
)

// manifest strictly decodes the documents of a file in deploy, or in a directory next to it, each
// into one of the objects.
func manifest(t *testing.T, name string, objects ...any) {
	t.Helper()
	text := ok(os.ReadFile(filepath.Join("deploy", name)))(t)
	in := yamlv3.NewDecoder(bytes.NewReader(text))
	for _, o := range objects {
		var node any // resolves aliases, which strict decoding does not know
		require.NoError(t, in.Decode(&node), name)
		one := ok(yaml.Marshal(node))(t)
		require.NoError(t, yaml.UnmarshalStrict(one, o), name)
	}

	require.True(t, errors.Is(in.Decode(new(any)), io.EOF), "%s has more documents", name)
}

// A node with the label runs the program. Only a node with the value alone has no kube-proxy.
func TestOneNodeFirst(t *testing.T) {
	t.Parallel()
	var base, ours, theirs appsv1.DaemonSet
	var kustomization struct {
		APIVersion, Kind string
		Resources        []string
		Patches          []struct{ Path string }
	}
	manifest(t, "daemonset.yaml", &base)
	manifest(t, "../deploy-one-node/kustomization.yaml", &kustomization)
	require.Equal(t, []string{"../deploy"}, kustomization.Resources)
	require.Len(t, kustomization.Patches, 1)
	manifest(t, "../deploy-one-node/"+kustomization.Patches[0].Path, &ours)
	manifest(t, "../deploy-one-node/kube-proxy.yaml", &theirs)
	require.Equal(t, base.TypeMeta, ours.TypeMeta)
	require.Equal(t, [2]string{base.Namespace, base.Name}, [2]string{ours.Namespace, ours.Name})
	runs := func(d *appsv1.DaemonSet, has labels.Set) bool {
		t.Helper()
		required := d.Spec.Template.Spec.Affinity.NodeAffinity
		terms := required.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		require.Len(t, terms, 1)
		require.Len(t, terms[0].MatchExpressions, 1)
		e := terms[0].MatchExpressions[0]
		r := ok(labels.NewRequirement(e.Key,
			selection.Operator(strings.ToLower(string(e.Operator))), e.Values))(t)
		return r.Matches(has)
	}

	readme := ok(os.ReadFile("README.md"))(t)
	for _, tt := range []struct {
		label        string
		ours, theirs bool
	}{{"", false, true}, {"beside", true, true}, {"alone", true, false}} {
		has := labels.Set{}
		if tt.label != "" {
			has["kernlb.io/node-proxy"] = tt.label
			require.True(t, strings.Contains(string(readme), "kernlb.io/node-proxy="+tt.label))
		}

		require.Equal(t, tt.ours, runs(&ours, has), tt.label)
		require.Equal(t, tt.theirs, runs(&theirs, has), tt.label)
	}
}

func TestTheManifestsFitTogether(t *testing.T) {
	t.Parallel()
	var account corev1.ServiceAccount
	var role rbacv1.ClusterRole
	var binding rbacv1.ClusterRoleBinding
	var files corev1.ConfigMap
	var daemons appsv1.DaemonSet
	var kustomization struct {
		APIVersion, Kind string
		Resources        []string
		Images           []struct{ Name, NewName, NewTag string }
	}
	manifest(t, "rbac.yaml", &account, &role, &binding)
	manifest(t, "config.yaml", &files)
	manifest(t, "daemonset.yaml", &daemons)
	manifest(t, "kustomization.yaml", &kustomization)

	require.Equal(t, "ClusterRole", role.Kind)
	require.Equal(t, role.Name, binding.RoleRef.Name)
	require.Equal(t, rbacv1.Subject{Kind: "ServiceAccount", Name: account.Name,
		Namespace: account.Namespace}, binding.Subjects[0])
	pod := daemons.Spec.Template
	require.Equal(t, account.Name, pod.Spec.ServiceAccountName)
	require.Equal(t, daemons.Spec.Selector.MatchLabels, pod.Labels)
	require.Len(t, kustomization.Resources, 3)
	require.Equal(t, files.Name, pod.Spec.Volumes[0].ConfigMap.Name)
	for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		require.Equal(t, "/var/lib/kubeproxy", c.VolumeMounts[0].MountPath)
		require.Equal(t, kustomization.Images[0].Name+":latest", c.Image)
		o := ok(parseOptions(append(c.Args, "--config="+file(t, files.Data["config.conf"]))))(t)
		require.Empty(t, o.warnings)
		require.Equal(t, "/var/lib/kubeproxy/kubeconfig.conf", o.settings.client.Kubeconfig)
	}

	var cleanup appsv1.DaemonSet
	manifest(t, "cleanup.yaml", &cleanup)
	pod = cleanup.Spec.Template
	require.Equal(t, cleanup.Spec.Selector.MatchLabels, pod.Labels)
	require.Equal(t, kustomization.Images[0].Name+":latest", pod.Spec.InitContainers[0].Image)
	o := ok(parseOptions(pod.Spec.InitContainers[0].Args))(t)
	require.True(t, o.cleanup)
	ok(clientcmd.Load([]byte(files.Data["kubeconfig.conf"])))(t)
}

// Until the API server answers, /healthz is 503, and its JSON says why.
func TestAnAPIServerThatDoesNotAnswerIsAProblem(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"the API server has not answered yet, so the node is not eligible"},
		(&proxy{}).problems())
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }
