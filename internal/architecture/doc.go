// Package architecture holds tests about the whole tree: who may import whom,
// what is documented, how large things are, and whether the drawings, the
// promises and the registries in the documents match the code. It has no code
// of its own.
package architecture
