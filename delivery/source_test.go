package delivery_test

import (
	"testing"

	"github.com/holdfast-dev/holdfast/delivery"
)

func TestB3_ASourceNameLeadsBackToItsBoot(t *testing.T) {
	instance, incarnation, ok := delivery.ParseInstanceSource(delivery.InstanceSource("in-1", 7))
	if !ok || instance != "in-1" || incarnation != 7 {
		t.Errorf("%s, %d, %v", instance, incarnation, ok)
	}
	for _, other := range []string{"", "host/ho-1", "instance/in-1", "instance/in-1/x", "instance/in-1/1/2"} {
		if _, _, ok := delivery.ParseInstanceSource(other); ok {
			t.Errorf("%q was taken for a boot", other)
		}
	}
}
