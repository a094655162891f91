package simulation

import (
	"testing"

	"github.com/holdfast-dev/holdfast/blob"
	"github.com/holdfast-dev/holdfast/blob/blobtest"
)

func TestTheBlobStoreInMemory(t *testing.T) {
	blobtest.Run(t, func(*testing.T) blob.Store { return newBlobs() })
}
