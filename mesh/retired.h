/* mesh/retired.h - calls that have another name now: to use one does not compile, and says which. Part of mesh.h 0.1.0. MIT licence.

   Includes layout.h, whose calls these were. What else changed, member by member: CHANGES.md.
*/
#ifndef MESH_RETIRED_H
#include "layout.h"
#endif

#ifndef MESH_RETIRED_H
#define MESH_RETIRED_H

#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 12)
#define MESH__RETIRED(old, now) int old(const void *, ...) __attribute__((unavailable("it is " now)));
#elif defined(__GNUC__)
#define MESH__RETIRED(old, now) int old(const void *, ...) __attribute__((error(#old ": it is " now)));
#else /* it is not declared */
#define MESH__RETIRED(old, now)
#endif

#ifdef __cplusplus
extern "C" {
#endif

MESH__RETIRED(mesh_spec_box, "mesh_layout_box(layout, rank, &box): the elements, or -1")
MESH__RETIRED(mesh_spec_check, "mesh_layout_check(layout, &err)")
MESH__RETIRED(mesh_spec_holders, "mesh_layout_holders(layout)")
MESH__RETIRED(mesh_spec_owner, "mesh_layout_owner(layout, index, k)")
MESH__RETIRED(mesh_spec_slice, "mesh_layout_slice(layout, rank, local, global, elem_bytes): the elements, or -1")
MESH__RETIRED(mesh_spec_paste, "mesh_layout_paste(layout, rank, global, local, elem_bytes): the elements, or -1")

#ifdef __cplusplus
}
#endif
#undef MESH__RETIRED
#endif /* MESH_RETIRED_H */
