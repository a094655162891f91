// Package acceptance holds the promises of the contract against the real
// binaries: real processes killed at any moment, real containers, real files.
// Its tests need root and runc; make test brings both.
package acceptance
