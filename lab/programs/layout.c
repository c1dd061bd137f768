/* Compares the layout that the library was made with to an installed <infiniband/verbs.h>.
 *
 * usage: layout LIBRARY. The table below is made by layout.py from what the library lists, so that
 * every structure and field that it knows is looked up in the header. */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct entry {
	const char *structure;
	const char *field;
	size_t value;
};

static const struct entry header[] = {
#include "layout_table.h"
};

int main(int argc, char **argv)
{
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!library) {
		printf("cannot load: %s\n", argc > 1 ? dlerror() : "no library named");
		return 2;
	}
	const struct entry *(*layout)(size_t *) = dlsym(library, "bowline_verbs_layout");
	size_t count = 0, i, wrong = 0;
	const struct entry *ours = layout ? layout(&count) : NULL;
	if (!ours || count != sizeof(header) / sizeof(header[0])) {
		printf("the library lists %zu entries\n", count);
		return 2;
	}
	for (i = 0; i < count; i++) {
		/* A newer header may have longer structures, whose new fields we do not know. */
		int grown = !ours[i].field && header[i].value > ours[i].value;
		if (ours[i].value != header[i].value && !grown) {
			printf("%s%s%s: %zu here, %zu in the header\n", ours[i].structure,
			       ours[i].field ? "." : "", ours[i].field ? ours[i].field : "",
			       ours[i].value, header[i].value);
			wrong++;
		}
	}
	printf("%zu sizes and offsets, %zu wrong\n", count, wrong);
	return wrong != 0;
}
