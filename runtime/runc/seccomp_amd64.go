package runc

import "github.com/opencontainers/runtime-spec/specs-go"

// architectures are those whose calls the profile judges; calls of any other
// end the process.
func architectures() []specs.Arch {
	return []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32}
}
