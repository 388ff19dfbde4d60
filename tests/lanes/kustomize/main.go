// Command kustomize prints the objects of a kustomization, as `kubectl kustomize FOLDER` does.
package main

import (
	"fmt"
	"os"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: kustomize FOLDER")
		os.Exit(2)
	}
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), os.Args[1])
	if err == nil {
		var text []byte
		if text, err = objects.AsYaml(); err == nil {
			_, err = os.Stdout.Write(text)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
