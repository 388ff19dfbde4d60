// Encode converts JSON on standard input to protobuf with upstream's own serializer: an object, a list or a Status to the
// body of a response; {"type": …, "object": …} to a watch frame. The input may hold several of them.
package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"os"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

var scheme = runtime.NewScheme()

func main() {
	log.SetFlags(0)
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme} {
		check(add(scheme))
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for input := json.NewDecoder(os.Stdin); ; {
		var value json.RawMessage
		err := input.Decode(&value)
		if err == io.EOF {
			return
		}
		check(err)
		var event struct {
			Type   string
			Object json.RawMessage
		}
		check(json.Unmarshal(value, &event))
		if event.Object == nil {
			_, err = os.Stdout.Write(body(value))
		} else {
			err = frame(event.Type, body(event.Object))
		}
		check(err)
	}
}

func body(text []byte) []byte {
	object, _, err := serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode(text, nil, nil)
	check(err)
	var written bytes.Buffer
	options := protobuf.SerializerOptions{StreamingCollectionsEncoding: true}
	check(protobuf.NewSerializerWithOptions(scheme, scheme, options).Encode(object, &written))
	return written.Bytes()
}

func frame(event string, object []byte) error {
	writer := protobuf.LengthDelimitedFramer.NewFrameWriter(os.Stdout)
	return protobuf.NewRawSerializer(scheme, scheme).Encode(&metav1.WatchEvent{Type: event, Object: runtime.RawExtension{Raw: object}}, writer)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
