//go:build !amd64

package runc

import "github.com/opencontainers/runtime-spec/specs-go"

// architectures is empty: the OCI runtime then judges the native ones.
func architectures() []specs.Arch { return nil }
