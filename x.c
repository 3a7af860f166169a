#define MESH_IMPLEMENTATION
#include "mesh.h"
#include "mesh_collectives.h"
#include "transports/mesh_socket.h"
int main(void){return 0;}
