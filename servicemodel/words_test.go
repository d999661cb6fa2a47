package servicemodel_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	sm "github.com/kernlb/kernlb/servicemodel"
)

func TestWordsOfDefaultsAreTaken(t *testing.T) {
	t.Parallel()
	var s sm.Service
	require.NoError(t, json.Unmarshal([]byte(`{"name": "default/web", "forwarding": "nat",
		"internalTrafficPolicy": "Cluster", "externalTrafficPolicy": "Local",
		"masquerade": {"clusterIPs": "default", "nodePorts": "host"}}`), &s))
	require.Equal(t, sm.Service{Name: s.Name, ExternalTrafficPolicy: sm.PolicyLocal,
		Masquerade: sm.Masquerade{NodePorts: sm.MasqueradeHost}}, s)
}
