package cluster

import "github.com/holdfast-dev/holdfast/internal/testenv"

// Process is one holdfast serve of a cluster.
type Process = testenv.Server
