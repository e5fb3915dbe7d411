/* Stands in for libfabric in tests of how the plugin finds libfabric and calls it, and records the
 * calls. Compiled with VERSION, the result of fi_version(). */

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char record[1 << 16];
static size_t used;
static int level_shown;
static const char *value_name, *value;
static int starving;

static void append(const char *format, va_list arguments)
{
	int len = vsnprintf(record + used, sizeof record - used, format, arguments);

	if (len > 0 && used + len < sizeof record)
		used += len;
}

static void note(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	append(format, arguments);
	va_end(arguments);
}

/* Functions that the plugin calls. */

uint32_t fi_version(void)
{
	return VERSION;
}

/* Has room for the structures that the fields from tx_attr to fabric_attr point to. */
void *fi_dupinfo(const void *info)
{
	void **made = info || starving ? NULL : calloc(1, 8192);
	int i;

	for (i = 0; made && i < 5; i++)
		made[9 + i] = (char *) made + 1024 * (1 + i);
	return made;
}

void fi_freeinfo(void *info)
{
	note("freed %s\n", (char *) info);
	free(info);
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const void *hints, void **info)
{
	note("getinfo %u.%u %s %s %#llx %s\n", version >> 16, version & 0xffff, node ? node : "-",
	     service ? service : "-", (unsigned long long) flags, (const char *) hints);
	if (starving)
		return -61;
	*info = fi_dupinfo(NULL);
	return 0;
}

int fi_fabric(void *attr, void **fabric, void *context)
{
	note("fabric %s\n", (const char *) attr);
	if (starving)
		return -12;
	*fabric = context ? NULL : attr;
	return 0;
}

int fi_param_define(const void *provider, const char *name, int type, const char *format, ...)
{
	va_list arguments;

	note("param %s %d ", name, type);
	va_start(arguments, format);
	append(format, arguments);
	va_end(arguments);
	note("\n");
	return provider ? 0 : -22;
}

int fi_param_get(void *provider, const char *name, const char **result)
{
	if (!provider || !value_name || strcmp(name, value_name))
		return -61;
	*result = value;
	return 0;
}

int fi_log_enabled(const void *provider, int level, int subsystem)
{
	return provider && level <= level_shown && subsystem <= 9;
}

void fi_log(const void *provider, int level, int subsystem, const char *function, int line, const char *format, ...)
{
	va_list arguments;

	note("log %d %d %s %s ", level, subsystem, function, line > 0 ? "line" : "no line");
	va_start(arguments, format);
	append(format, arguments);
	va_end(arguments);
}

/* Functions that the test calls. */

/* Calls the test back, as libfabric calls fi_prov_ini(). */
void double_call(void (*function)(void *), void *argument)
{
	function(argument);
	note("called\n");
}

const char *double_record(void)
{
	return record;
}

/* From now on there is no memory for infos, or there is again. */
void double_starve(int starves)
{
	starving = starves;
}

void double_show(int level)
{
	level_shown = level;
}

void double_set(const char *name, const char *text)
{
	value_name = name;
	value = text;
}
