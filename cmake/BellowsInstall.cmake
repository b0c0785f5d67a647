# `cmake --install`: a folder that can be moved. Programs and libraries find each other by $ORIGIN alone; the
# program `bellows` finds LibTorch when it starts, and a user's program carries the LibTorch it was built with.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/bellows)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" BELLOWS_LIBTORCH_SERIES "${LibTorch_VERSION}")

install(TARGETS bellows EXPORT bellows-targets FILE_SET HEADERS)
install(TARGETS bellows_core ARCHIVE EXCLUDE_FROM_ALL FILE_SET HEADERS)
get_property(programs GLOBAL PROPERTY BELLOWS_PROGRAMS)
if(programs)
  install(TARGETS ${programs})
endif()
get_property(plugins GLOBAL PROPERTY BELLOWS_PLUGINS)
if(plugins)
  install(TARGETS ${plugins} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

install(EXPORT bellows-targets NAMESPACE bellows:: DESTINATION ${package_dir})
configure_package_config_file(cmake/bellows-config.cmake.in bellows-config.cmake INSTALL_DESTINATION ${package_dir}
                              NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(bellows-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/bellows-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/bellows-config-version.cmake
              cmake/FindLibTorch.cmake DESTINATION ${package_dir})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
